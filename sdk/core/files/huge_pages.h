// One block of memory in huge pages for many tensors. With small pages the system takes longer to provide the memory
// than to read a file into it.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <memory>
#include <vector>

namespace vernier {

class HugePages {
 public:
  static constexpr std::size_t smallest = 4096;  // bytes; a smaller tensor that stays is not worth the block

  // sizes: of the parts, in bytes. Uses small pages where the system has no huge ones. Throws std::bad_alloc.
  explicit HugePages(const std::vector<std::uint64_t>& sizes);
  // A contiguous tensor in the i-th part. The block is freed with the last of its tensors. Any thread.
  torch::Tensor tensor(std::size_t i, at::IntArrayRef shape, torch::ScalarType type) const;
  // True if the memory of a tensor is part of such a block.
  static bool holds(const at::DataPtr& data);

 private:
  std::vector<std::size_t> places_;
  std::shared_ptr<char> bytes_;
};

// Counts memory that does not come from LibTorch's allocator. vernier/memory.h reports it with the rest. Negative when
// the memory is freed. Any thread.
VERNIER_API void count_memory_of_others(std::int64_t bytes);

}  // namespace vernier
