// Norms of gradients that stay on their device (LibTorch's clip_grad_norm_ ends in a host sync).
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <vector>

namespace vernier {

// The p-norm over all elements of all tensors as one float32 0-dim tensor on their device; 0 for an empty list.
// p: 1, 2, infinity or any other positive order. One device; dtypes may differ.
VERNIER_API torch::Tensor grad_norm(const std::vector<torch::Tensor>& gradients, double p = 2.0);

// torch.nn.utils.clip_grad_norm_: multiplies the gradients, in place, by min(1, max_norm / (norm + 1e-6)). Returns the norm
// before. A norm that is not finite makes every gradient so, as in PyTorch.
VERNIER_API torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& gradients, double max_norm, double p = 2.0);

}  // namespace vernier
