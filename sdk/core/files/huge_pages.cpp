#include "huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace vernier {

namespace {

constexpr std::size_t alignment = 64;  // the alignment of LibTorch's own allocator

using Keeper = std::shared_ptr<char>;

void release(void* keeper) {
  delete static_cast<Keeper*>(keeper);
}

}  // namespace

HugePages::HugePages(const std::vector<std::uint64_t>& sizes) {
  std::size_t all = 0;
  for (const auto size : sizes) {
    places_.push_back(all);
    all += (size + alignment - 1) / alignment * alignment;
  }
  all = std::max<std::size_t>(all, 1);
  void* bytes = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes == MAP_FAILED) throw std::bad_alloc();
  ::madvise(bytes, all, MADV_HUGEPAGE);  // only a hint: without huge pages the system uses small ones
  count_memory_of_others(static_cast<std::int64_t>(all));
  bytes_ = Keeper(static_cast<char*>(bytes), [all](char* start) {
    ::munmap(start, all);
    count_memory_of_others(-static_cast<std::int64_t>(all));
  });
}

torch::Tensor HugePages::tensor(std::size_t i, at::IntArrayRef shape, torch::ScalarType type) const {
  return at::for_blob(bytes_.get() + places_[i], shape)
      .context(new Keeper(bytes_), release)
      .options(torch::TensorOptions(type))
      .make_tensor();
}

bool HugePages::holds(const at::DataPtr& data) {
  return data.get_deleter() == release;
}

}  // namespace vernier
