// Tensors of several devices and dtypes: LibTorch's list operators take those of one alone, or are slow.
#pragma once

#include <torch/types.h>

#include <vector>

namespace vernier {

using TensorVector = std::vector<torch::Tensor>;

// On that device. The host waits for nothing on the way to a GPU; what comes from one has arrived, for a copy that was
// not waited for would be read before it is there.
inline torch::Tensor moved(const torch::Tensor& tensor, const torch::Device& device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

// In the order of each kind's first tensor; within a kind in the order given.
inline std::vector<TensorVector> by_device_and_dtype(const TensorVector& tensors) {
  std::vector<TensorVector> kinds;
  for (const auto& tensor : tensors) {
    auto kind = kinds.begin();
    while (kind != kinds.end() &&
           (kind->front().scalar_type() != tensor.scalar_type() || kind->front().device() != tensor.device())) {
      ++kind;
    }
    if (kind == kinds.end()) kind = kinds.emplace(kind);
    kind->push_back(tensor);
  }
  return kinds;
}

}  // namespace vernier
