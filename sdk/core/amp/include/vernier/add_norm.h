// The sum of a residual stream and a branch, together with its LayerNorm or RMSNorm.
//
//   const auto [sum, normed] = vernier::add_norm(x, attention(...), {weight, bias});
//   return sum + mlp(normed);
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

namespace vernier {

struct NormOptions {
  torch::Tensor weight = {}, bias = {};  // [width]; undefined: 1 and 0
  double eps = 1e-5;
  bool is_rms = false;  // rms_norm, which has no bias; else layer_norm
};
struct AddedNorm {
  torch::Tensor sum, normed;
};

// Computes x + branch, and layer_norm or rms_norm of the sum over its last dimension. x: [..., width]. branch: as x, or
// undefined: then `sum` is x. Throws c10::Error for wrong shapes.
//
// Call it where a linear layer or a convolution takes `normed`. On an NVIDIA GPU under autocast, with x in float32 and
// the branch in autocast's dtype, one kernel adds, normalises, and rounds `normed` to the dtype to which autocast would
// cast it there. Elsewhere, and while an interceptor may change the norm (vernier/layers.h), these are LibTorch's
// operators. The layer takes the same bits in both cases, and gradients of x and the branch have the same bits.
VERNIER_API AddedNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, const NormOptions& options);

}  // namespace vernier
