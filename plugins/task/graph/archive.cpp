#include "archive.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/graph/pt2_types.h>
#include <vernier/json_in.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

namespace graph {

namespace {

using caffe2::serialize::PyTorchStreamReader;
using nlohmann::json;
using vernier::pt2::dtype_of;
using vernier::pt2::strided;

// Reads from memory. A place beyond the end reads nothing, which the zip's reader refuses.
class Memory final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Memory(torch::Tensor bytes) : bytes_(std::move(bytes)) {}
  std::size_t size() const override { return static_cast<std::size_t>(bytes_.numel()); }
  std::size_t read(std::uint64_t place, void* into, std::size_t count, const char*) const override {
    if (place >= size()) return 0;
    count = std::min(count, size() - place);
    std::memcpy(into, static_cast<const char*>(bytes_.const_data_ptr()) + place, count);
    return count;
  }

 private:
  torch::Tensor bytes_;
};

constexpr std::size_t deepest = 128;

std::vector<std::int64_t> integers(const json& list) {
  std::vector<std::int64_t> all;
  for (const auto& one : list) all.push_back(one.at("as_int").get<std::int64_t>());
  return all;
}

// The number of elements that a view reaches; -1: it cannot be.
std::int64_t reach_of(const Archive::View& view) {
  if (view.sizes.size() != view.strides.size() || view.sizes.size() > 64 || view.offset < 0) return -1;
  std::int64_t last = view.offset;
  bool is_empty = false;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    std::int64_t step = 0;
    if (view.sizes[i] < 0 || view.strides[i] < 0) return -1;
    if (view.sizes[i] == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(view.sizes[i] - 1, view.strides[i], &step) ||
               __builtin_add_overflow(last, step, &last)) {
      return -1;
    }
  }
  return is_empty ? 0 : last + 1;
}

// False if two places of a view may be the same element.
bool has_own_elements(const Archive::View& view) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] > 1) steps.emplace_back(view.strides[i], view.sizes[i]);
  }
  std::ranges::sort(steps);
  std::int64_t last = 0;
  return std::ranges::all_of(steps, [&](const auto& step) {
    const bool is_beyond = step.first > last;
    last += step.first * (step.second - 1);
    return is_beyond;
  });
}

// Makes a tensor of a storage's bytes. It is not a view for autograd: autocast keeps no casts of views.
torch::Tensor tensor_of(const torch::Tensor& bytes, const Archive::View& view) {
  if (reach_of(view) == 0) return at::empty(view.sizes, view.dtype);
  return at::empty({0}, view.dtype).set_(bytes.storage(), view.offset, view.sizes, view.strides);
}

// Returns the flags of the bytes that the view covers. flags: those of all bytes of its storage.
torch::Tensor flags_of(const torch::Tensor& flags, Archive::View view) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(view.dtype));
  for (std::size_t i = 0; i < view.sizes.size(); ++i) view.strides[i] *= view.sizes[i] > 1 ? size : 0;
  view.sizes.push_back(size), view.strides.push_back(1);
  return flags.as_strided(view.sizes, view.strides, view.offset * size);
}

}  // namespace

Archive::Archive(torch::Tensor bytes, std::string path) : bytes_(std::move(bytes)), path_(std::move(path)) {
  if (bytes_.numel() < 4 || std::memcmp(bytes_.const_data_ptr(), "PK\x03\x04", 4) != 0) {
    refuse("it is not one; name the .pt2 file that torch.export.save() or docs/guides/tasks.md's export.py wrote");
  }
  try {
    reader_ = std::make_unique<PyTorchStreamReader>(std::make_shared<Memory>(bytes_));
    std::int64_t total = 0;
    for (const auto& record : reader_->getAllRecords()) {
      const auto size = reader_->getRecordSize(record);
      if (size > static_cast<std::size_t>(bytes_.numel() - total)) refuse("its records are larger than the file");
      total += static_cast<std::int64_t>(size);
    }
  } catch (const vernier::Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse("it is damaged, or no zip (" + vernier::message(error) + ")");
  }
}

void Archive::refuse(const std::string& what) const {
  vernier::refuse("'" + path_ + "' cannot be read as a graph of torch.export: " + vernier::printable(what));
}

std::pair<at::DataPtr, std::size_t> Archive::record_of(const std::string& record) {
  try {
    auto [data, size] = reader_->getRecord(record);
    return {std::move(data), size};
  } catch (const std::exception& error) {
    if (vernier::is_out_of_memory(std::current_exception())) throw;
    refuse("its record " + record + " is damaged (" + vernier::message(error) + ")");
  }
}

json Archive::json(const std::string& record) {
  try {
    const auto [data, size] = record_of(record);
    const std::string_view text(static_cast<const char*>(data.get()), size);
    if (const auto trouble = vernier::trouble_with_json(text, deepest, INFINITY); !trouble.empty())
      refuse("its record " + record + " " + trouble);
    return json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    refuse("its record " + record + " is damaged (" + vernier::message(error) + ")");
  }
}

json Archive::program() {
  std::vector<std::string> names;
  for (const auto& record : reader_->getAllRecords()) {
    if (record.starts_with("models/") && record.ends_with(".json")) names.push_back(record);
  }
  if (names.empty() && reader_->hasRecord("data.pkl")) {
    refuse("it is TorchScript; set [task] use = \"script\", or export it with torch.export");
  }
  if (names.size() != 1) refuse("it has " + std::to_string(names.size()) + " programs, and must have one");
  return json(names[0]);
}

json Archive::extra(const std::string& name) {
  const auto record = "extra/" + name + ".json";
  return reader_->hasRecord(record) ? json(record) : nlohmann::json();
}

json Archive::config(const std::string& folder) {
  for (const auto& record : reader_->getAllRecords()) {
    if (record.starts_with(folder + "/") && record.ends_with("_config.json")) return json(record).at("config");
  }
  return json::object();
}

torch::Tensor Archive::bytes_of(const std::string& record) {
  const auto [data, size] = record_of(record);
  auto bytes = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  if (size > 0) std::memcpy(bytes.mutable_data_ptr(), data.get(), size);
  return bytes;
}

Archive::View Archive::view_of(const std::string& name, const std::string& record, const nlohmann::json& meta) {
  if (!reader_->hasRecord(record)) refuse("its record " + record + " is missing");
  const auto dtype = dtype_of(meta.at("dtype").get<int>());
  if (!dtype) refuse(record + " has a dtype that LibTorch does not have");
  if (meta.at("layout").get<int>() != strided) refuse(record + " is sparse, and only dense tensors are read");
  View view{*dtype, integers(meta.at("sizes")), integers(meta.at("strides")),
            meta.at("storage_offset").at("as_int").get<std::int64_t>()};
  const auto size = reader_->getRecordSize(record);
  const auto count = static_cast<std::int64_t>(size / c10::elementSize(*dtype)), reach = reach_of(view);
  if (reach < 0 || reach > count) {
    refuse(record + " has " + std::to_string(size) + " bytes, which do not fit its sizes");
  }
  if (reach > 0 && !has_own_elements(view)) {
    refuse("'" + name +
           "' repeats its elements, as expand() does; give it memory of its own by clone() before the export");
  }
  return view;
}

// Views that have bytes in common share memory, as in Python. Others become tensors of their own without gaps, which
// the kernels of optimizers need.
void Archive::read(const std::string& record, const std::vector<Named>& all, Tensors& by_name) {
  const auto bytes = bytes_of(record);
  std::vector<Named> kinds;  // without the other names of tied tensors
  for (const auto& named : all) {
    if (std::ranges::none_of(kinds, [&](const auto& kind) { return named.is_tied_to(kind); })) kinds.push_back(named);
  }
  torch::Tensor common;
  if (kinds.size() > 1) {
    const auto seen = at::zeros(bytes.sizes(), at::kBool);
    common = at::zeros(bytes.sizes(), at::kBool);
    for (const auto& [name, view, trains] : kinds) {
      if (reach_of(view) == 0) continue;
      flags_of(common, view).logical_or_(flags_of(seen, view));
      flags_of(seen, view).fill_(true);
    }
  }
  for (const auto& kind : kinds) {
    auto tensor = tensor_of(bytes, kind.view);
    const bool shares = common.defined() && reach_of(kind.view) > 0 && flags_of(common, kind.view).any().item<bool>();
    if (kind.trains && shares && !tensor.is_non_overlapping_and_dense()) {
      refuse(
          "its parameter '" + kind.name +
          "' is a view with gaps of memory that others share; give it memory of its own by clone() before the export");
    }
    if (!shares) tensor = tensor.clone();
    tensor = tensor.detach().set_requires_grad(kind.trains);
    for (const auto& named : all) {
      if (named.is_tied_to(kind)) by_name[named.name] = tensor;
    }
  }
}

Archive::Tensors Archive::tensors(const std::string& folder) {
  try {
    std::map<std::string, std::vector<Named>> by_record;
    const auto entries = config(folder);
    for (const auto& [name, entry] : entries.items()) {
      if (entry.at("use_pickle").get<bool>()) refuse("'" + name + "' is pickled; export a model of plain tensors");
      const auto record = folder + "/" + entry.at("path_name").get<std::string>();
      const auto& meta = entry.at("tensor_meta");
      auto view = view_of(name, record, meta);
      const bool trains = entry.at("is_param").get<bool>() && meta.at("requires_grad").get<bool>() &&
                          (at::isFloatingType(view.dtype) || at::isComplexType(view.dtype));
      by_record[record].push_back({name, std::move(view), trains});
    }
    Tensors by_name;
    for (const auto& [record, all] : by_record) read(record, all, by_name);
    return by_name;
  } catch (const nlohmann::json::exception& error) {
    refuse("its list of " + folder + " is damaged (" + vernier::message(error) + ")");
  }
}

std::string Archive::with(const Tensors& tensors) {
  Tensors changed;  // bytes by record
  std::set<std::string> done;
  for (const std::string folder : {weights_folder, constants_folder}) {
    const auto entries = config(folder);
    for (const auto& [name, entry] : entries.items()) {
      const auto found = tensors.find(name);
      if (found == tensors.end() || !done.insert(name).second) continue;
      const auto record = folder + "/" + entry.at("path_name").get<std::string>();
      auto& bytes = changed[record];
      if (!bytes.defined()) bytes = bytes_of(record);
      const auto view = view_of(name, record, entry.at("tensor_meta"));
      tensor_of(bytes, view).copy_(found->second.detach());
    }
  }
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  static const std::set<std::string> own = {"version", ".data/version", ".data/serialization_id"};
  for (const auto& record : reader_->getAllRecords()) {
    if (own.contains(record)) continue;  // the writer adds its own
    if (const auto found = changed.find(record); found != changed.end()) {
      writer.writeRecord(record, found->second.const_data_ptr(), found->second.nbytes());
    } else {
      const auto [data, size] = record_of(record);
      writer.writeRecord(record, data.get(), size);
    }
  }
  writer.writeEndOfFile();
  return bytes;
}

}  // namespace graph
