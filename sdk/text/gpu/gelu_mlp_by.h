// gelu_mlp() by a library of kernels. With one that was compiled for the host, it works on CPU tensors.
#pragma once

#include <vernier/text/gelu_mlp.h>

#include "gpu/gpu_library.h"

namespace vernier {

// All tensors have one dtype of 16 bits, and x is [rows, width]. It has derivatives of any order.
VERNIER_API torch::Tensor gelu_mlp_by(const gpu::Library& library, const torch::Tensor& x, const GeluMlp& layers);

// Returns true if the results and gradients of gelu_mlp_by() are within 2 % of the operators' in norm, and two calls
// have equal bits. It uses random tensors of these shapes. Throws Error if the library has no such product. Waits for
// the device.
VERNIER_API bool gelu_mlp_is_right(const gpu::Library& library, const torch::Tensor& x, const GeluMlp& layers);

}  // namespace vernier
