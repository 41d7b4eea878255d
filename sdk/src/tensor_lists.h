// LibTorch's list operators take tensors of one device and dtype, or are slow.
#pragma once

#include <torch/types.h>

#include <vector>

namespace vernier {

using TensorVector = std::vector<torch::Tensor>;

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
