// Gradient norms that stay on their device. (LibTorch's clip_grad_norm_ ends in a host sync.)
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <vector>

namespace vernier {

// Returns the p-norm over all elements of all tensors: 0-dim, on the device of the first one, float64 if any tensor is,
// else float32. An empty list gives 0 on the CPU. p is 1, 2, infinity or any other positive number. Throws Error for
// sparse tensors.
VERNIER_API torch::Tensor grad_norm(const std::vector<torch::Tensor>& gradients, double p = 2.0);

// Multiplies the gradients in place by min(1, max_norm / (norm + 1e-6)) and returns the norm before that, as
// torch.nn.utils.clip_grad_norm_ does. Call it after unscaling and before the optimizer's step. As in PyTorch, a NaN
// spreads to all gradients. An infinite norm turns finite gradients into 0 and infinite ones into NaN.
VERNIER_API torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& gradients, double max_norm, double p = 2.0);

// The result of one pass over gradients, which may still be scaled.
struct VERNIER_API Inspected {
  torch::Tensor found_inf;  // float32 0-dim on the gradients' device: 1 if any element is inf or NaN, else 0
  torch::Tensor norm;       // float64 0-dim: 2-norm over all; the sum in float64 cannot overflow
  torch::Tensor norms;      // float64 [n]: 2-norm of each non-empty gradient in order; undefined on the CPU
};
// Reads the gradients once and changes nothing. No host sync on a GPU. Throws Error unless all gradients are dense
// float32 on one device; can_inspect() returns whether they are. On the CPU, the order of the sum does not depend on
// the number of threads.
VERNIER_API Inspected inspect_gradients(const std::vector<torch::Tensor>& gradients);
VERNIER_API bool can_inspect(const std::vector<torch::Tensor>& gradients);

// Clipping within the optimizer's step. Returns the number by which the step must divide the gradients, so that their
// true norm becomes at most max_norm. The true norm is norm / grad_scale. norm: Inspected::norm. Scales are float32
// 0-dim; undefined means 1.
struct VERNIER_API Clipped {
  torch::Tensor norm;        // the true norm before clipping, float32 0-dim
  torch::Tensor grad_scale;  // equals the argument if nothing is clipped; on the CPU it is the same tensor
};
VERNIER_API Clipped clip_scale(const torch::Tensor& norm, double max_norm, const torch::Tensor& grad_scale = {});

}  // namespace vernier
