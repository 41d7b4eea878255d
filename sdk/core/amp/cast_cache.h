// A cache of 16-bit copies of weights. A copy is reused until its weight changes.
#pragma once

#include <torch/types.h>

#include <unordered_map>

namespace vernier {

// There is one copy for each weight (or view of one) and dtype. It is differentiable and may be used in several graphs,
// because its node has no saved tensors that backward would free.
class CastCache {
 public:
  torch::Tensor cast(const torch::Tensor& weight, torch::ScalarType dtype) {
    const bool recorded = weight.requires_grad() && torch::GradMode::is_enabled();
    const auto [first, last] = copies_.equal_range(weight.storage().unsafeGetStorageImpl());
    for (auto entry = first; entry != last; ++entry) {
      const auto& [source, version, copy] = entry->second;
      const bool is_right = copy.scalar_type() == dtype && copy.requires_grad() == recorded;
      if (is_right && version == weight._version() && is_same_view(source, weight)) return copy;
    }
    Entry entry{weight, weight._version(), weight.to(dtype)};
    return copies_.emplace(weight.storage().unsafeGetStorageImpl(), std::move(entry))->second.copy;
  }

  void clear() { copies_.clear(); }

 private:
  struct Entry {
    torch::Tensor source;  // keeps the storage alive, so that no other tensor gets its address
    std::int64_t version;
    torch::Tensor copy;
  };
  static bool is_same_view(const torch::Tensor& a, const torch::Tensor& b) {
    return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
           a.requires_grad() == b.requires_grad() && a.scalar_type() == b.scalar_type();
  }
  std::unordered_multimap<const c10::StorageImpl*, Entry> copies_;
};

}  // namespace vernier
