// An update of an average of weights by LibTorch's operators, as on a GPU: without a host sync.
#pragma once

#include <vernier/ema.h>

namespace vernier {

// Ema::update() for a GPU. Works on any device; a last bit may differ from the host's. averages: in the dtype of Ema,
// not empty. updates: int64 0-dim on their device, the applied updates so far.
VERNIER_API void average_by_operators(const EmaOptions& options, const std::vector<torch::Tensor>& averages,
                                      const torch::Tensor& updates, const std::vector<torch::Tensor>& weights,
                                      const torch::Tensor& skip_update = {});

}  // namespace vernier
