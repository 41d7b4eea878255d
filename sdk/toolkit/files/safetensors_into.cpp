// Reads tensors of a safetensors file straight into live ones, after every byte was checked.
#include <ATen/ops/empty.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "safetensors_file.h"

namespace vernier {

namespace {

// Whether the tensor's memory is its values in order, as in a file.
bool takes_bytes(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor.is_inference();
}

// The names of those whose memory a file's bytes can be read into: no other one has a part of it.
std::set<std::string> takers_of_bytes(const Tensors& live) {
  struct Memory {
    const char *begin, *end;
    const std::string* name;
    bool fits;
  };
  std::vector<Memory> all;
  for (const auto& [name, tensor] : live) {
    const auto& storage = tensor.storage();
    const auto* begin = static_cast<const char*>(storage.data());
    all.push_back({begin, begin + storage.nbytes(), &name, takes_bytes(tensor)});
  }
  std::ranges::sort(all, {}, &Memory::begin);
  std::set<std::string> takers;
  const char* last_end = nullptr;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool overlaps = all[i].begin < last_end || (i + 1 < all.size() && all[i + 1].begin < all[i].end);
    if (all[i].fits && !overlaps) takers.insert(*all[i].name);
    last_end = std::max(last_end, all[i].end);
  }
  return takers;
}

}  // namespace

// Nothing changes unless the whole file is right. Between the two passes nobody writes to it: a file is replaced whole.
void SafetensorsFile::read_into(const Tensors& live, const Check& check) const {
  verify_all(check);
  const auto direct = takers_of_bytes(live);
  for_each_entry([&](const Entry& entry, Checksum&) {
    const auto found = live.find(entry.name);
    if (found == live.end() || !direct.contains(entry.name) || found->second.scalar_type() != entry.type) return;
    read(entry, found->second, nullptr);
    found->second.unsafeGetTensorImpl()->bump_version();
  });
  std::map<std::string, const Entry*> others;  // in the order of their names: a tied weight gets the last value
  for (const Entry& entry : entries_) {
    const auto found = live.find(entry.name);
    if (found == live.end() || (direct.contains(entry.name) && found->second.scalar_type() == entry.type)) continue;
    others[entry.name] = &entry;
  }
  for (const auto& [name, entry] : others) {
    const auto value = at::empty(entry->shape, entry->type);
    read(*entry, value, nullptr);
    live.at(name).copy_(value);
  }
}

}  // namespace vernier
