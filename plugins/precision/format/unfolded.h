// Computes convolutions and their gradients as matrix products of an emulated matrix unit, in any number of dimensions.
#pragma once

#include <vernier/lab/emulated_matmul.h>

#include "products.h"

namespace formats {

// Returns y [N, O, ...] of x [N, C, ...] and w [O, C / groups, ...]. The sums go over the positions of the kernel, the
// last dimension fastest, and at each over the channels of the group.
torch::Tensor unfolded_convolution(const vernier::UnitOperand& x, const vernier::UnitOperand& w,
                                   const Products::Convolution& shape, const vernier::MatrixUnit& unit);

// Returns dx of the given sizes. The sums are those of a convolution of g with the mirrored kernel; a stride puts zeros
// between the positions of g.
torch::Tensor unfolded_input_gradient(const vernier::UnitOperand& g, const vernier::UnitOperand& w,
                                      at::IntArrayRef sizes, const Products::Convolution& shape,
                                      const vernier::MatrixUnit& unit);

// Returns dw of the given sizes. The sums go over the samples, and for each over the positions of g.
torch::Tensor unfolded_weight_gradient(const vernier::UnitOperand& x, const vernier::UnitOperand& g,
                                       at::IntArrayRef sizes, const Products::Convolution& shape,
                                       const vernier::MatrixUnit& unit);

}  // namespace formats
