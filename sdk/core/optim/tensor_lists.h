// Sorts tensors by device and dtype: LibTorch's list operators need one device and dtype, or are slow otherwise.
#pragma once

#include <torch/types.h>

#include <vector>

namespace vernier {

using TensorVector = std::vector<torch::Tensor>;

// Returns the tensor on a device. Copies to a GPU are asynchronous. Copies to the CPU are complete on return, because
// the host reads them at once.
inline torch::Tensor moved(const torch::Tensor& tensor, const torch::Device& device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

// Returns one list for each device and dtype, in the order of their first tensors. Each list keeps the given order.
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
