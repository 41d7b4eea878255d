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

bool SafetensorsFile::read_into(const Tensors& live, const Check& check) const {
  const auto leased = LeasedFile::of(file_, size_);
  if (leased == nullptr) return false;
  verify_all(check, leased.get());
  const auto direct = takers_of_bytes(live);
  std::map<std::string, torch::Tensor> others;  // in the order of their names: a tied weight gets the last value
  Checksum checksum;
  for (const Entry& entry : entries_) {
    const auto found = live.find(entry.name);
    const bool is_direct = direct.contains(entry.name) && found->second.scalar_type() == entry.type;
    if (found == live.end() || is_direct) continue;
    const auto value = others[entry.name] = at::empty(entry.shape, entry.type);
    read(entry, value, &checksum);
    check(entry.name, checksum);
  }
  if (!leased->is_leased()) return false;
  const auto for_each_direct = [&](const std::function<void(const Entry&, const torch::Tensor&, Checksum&)>& body) {
    for_each_entry([&](const Entry& entry, Checksum& sum) {
      if (const auto found = live.find(entry.name); found != live.end() && !others.contains(entry.name)) {
        body(entry, found->second, sum);
      }
    });
  };
  try {
    for_each_direct([&](const Entry& entry, const torch::Tensor& tensor, Checksum&) { read(entry, tensor, nullptr); });
    for (const auto& [name, value] : others) live.at(name).copy_(value);
    if (!leased->is_leased()) {  // a writer may have waited until the system let it in
      for_each_direct([&](const Entry& entry, const torch::Tensor& tensor, Checksum& sum) {
        sum.restart();
        sum.add(tensor.const_data_ptr(), tensor.nbytes());
        check(entry.name, sum);
      });
    }
  } catch (const Error& error) {
    throw Error(c10::str(error.what(), "; the file was whole when it was checked: the live tensors changed in part"));
  }
  return true;
}

}  // namespace vernier
