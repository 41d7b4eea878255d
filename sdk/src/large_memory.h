// Memory in one piece of large pages for many tensors: page by page, the system takes longer to give it than to read a
// file into it.
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

namespace vernier {

class LargeMemory {
 public:
  explicit LargeMemory(const std::vector<std::uint64_t>& sizes);  // of its parts, in bytes; throws std::bad_alloc
  // A contiguous tensor in the i-th part. The memory lives as long as one of its tensors. Any thread.
  torch::Tensor tensor(std::size_t i, at::IntArrayRef shape, torch::ScalarType type) const;
  // Whether it is this memory that a tensor has.
  static bool holds(const at::DataPtr& data);

 private:
  std::vector<std::size_t> places_;
  std::shared_ptr<char> bytes_;
};

}  // namespace vernier
