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

}  // namespace vernier
