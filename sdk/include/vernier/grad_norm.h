// Norms of gradients that stay on their device (LibTorch's clip_grad_norm_ ends in a host sync).
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <vector>

namespace vernier {

// The p-norm over all elements of all tensors, 0-dim, on the first one's device: float32, or float64 where one of them
// is. 0, on the CPU, for an empty list. p is 1, 2, infinity or any other positive order. Sparse tensors throw Error.
VERNIER_API torch::Tensor grad_norm(const std::vector<torch::Tensor>& gradients, double p = 2.0);

// torch.nn.utils.clip_grad_norm_: multiplies the gradients, in place, by min(1, max_norm / (norm + 1e-6)) and returns
// the norm from before. Call it between unscaling and the optimizer's step. As in PyTorch a NaN spreads to every
// gradient, and an infinite norm makes the finite ones 0 and the infinite ones NaN.
VERNIER_API torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& gradients, double max_norm, double p = 2.0);

// What one pass finds out over gradients that may still be scaled, without a change to them. No host sync on a GPU.
struct VERNIER_API Inspected {
  torch::Tensor found_inf;  // float32 0-dim on their device: 1 where an element is inf or nan, else 0
  torch::Tensor norm;       // float64 0-dim: the 2-norm over all, summed in float64: no finite float32 overflows in it
  torch::Tensor norms;      // float64 [n]: of each that is not empty, in their order; by operators alone
};
// Throws Error where not all are dense float32 on one device: ask can_inspect(). On the CPU the sum is in one order for
// any number of threads; by_operators: there too as on a GPU.
VERNIER_API Inspected inspect_gradients(const std::vector<torch::Tensor>& gradients, bool by_operators = false);
VERNIER_API bool can_inspect(const std::vector<torch::Tensor>& gradients);

// Clipping left to the optimizer's pass: what gradients with this norm (of Inspected) are to be divided by, so that the
// true norm, norm / grad_scale, is at most max_norm. Both scales float32 0-dim; undefined stands for 1.
struct VERNIER_API Clipped {
  torch::Tensor norm;        // true, before clipping, float32 0-dim
  torch::Tensor grad_scale;  // the one given where there is nothing to clip (on the CPU the same tensor)
};
VERNIER_API Clipped clip_scale(const torch::Tensor& norm, double max_norm, const torch::Tensor& grad_scale = {});

}  // namespace vernier
