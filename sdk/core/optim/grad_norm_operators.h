// Inspects gradients by LibTorch's operators, as on a GPU.
#pragma once

#include <vernier/grad_norm.h>

namespace vernier {

// The part of inspect_gradients() for a GPU: without a host sync and with `norms`. Works on any device. The list is not
// empty, and can_inspect() is true for it.
Inspected inspect_by_operators(const std::vector<torch::Tensor>& gradients);

}  // namespace vernier
