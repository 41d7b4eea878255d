#include "archive.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/graph/pt2_types.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace graph {

namespace {

using caffe2::serialize::PyTorchStreamReader;
using nlohmann::json;
using vernier::pt2::dtype_of;
using vernier::pt2::strided;

constexpr const char* weights = "data/weights";

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

std::vector<std::int64_t> integers(const json& list) {
  std::vector<std::int64_t> all;
  for (const auto& one : list) all.push_back(one.at("as_int").get<std::int64_t>());
  return all;
}

// The number of elements that a tensor of these sizes and strides reaches; -1: it cannot be.
std::int64_t reach_of(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                      std::int64_t offset) {
  if (sizes.size() != strides.size() || sizes.size() > 64 || offset < 0) return -1;
  std::int64_t last = offset;
  bool is_empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t step = 0;
    if (sizes[i] < 0 || strides[i] < 0) return -1;
    if (sizes[i] == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last)) {
      return -1;
    }
  }
  return is_empty ? 0 : last + 1;
}

bool product_is_within(const std::vector<std::int64_t>& sizes, std::int64_t most) {
  std::int64_t product = 1;
  return std::ranges::find(sizes, 0) != sizes.end() || std::ranges::all_of(sizes, [&](std::int64_t size) {
           return !__builtin_mul_overflow(product, size, &product) && product <= most;
         });
}

}  // namespace

Archive::Archive(torch::Tensor bytes, std::string path) : bytes_(std::move(bytes)), path_(std::move(path)) {
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
    const auto* text = static_cast<const char*>(data.get());
    return json::parse(text, text + size);
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

json Archive::evaluation() {
  const std::string record = "extra/evaluation.json";
  return reader_->hasRecord(record) ? json(record) : nlohmann::json();
}

json Archive::config(const std::string& folder) {
  for (const auto& record : reader_->getAllRecords()) {
    if (record.starts_with(folder + "/") && record.ends_with("_config.json")) return json(record).at("config");
  }
  return json::object();
}

torch::Tensor Archive::tensor(const std::string& record, const nlohmann::json& meta) {
  if (!reader_->hasRecord(record)) refuse("its record " + record + " is missing");
  const auto dtype = dtype_of(meta.at("dtype").get<int>());
  if (!dtype) refuse(record + " has a dtype that LibTorch does not have");
  if (meta.at("layout").get<int>() != strided) refuse(record + " is sparse, and only dense tensors are read");
  const auto sizes = integers(meta.at("sizes")), strides = integers(meta.at("strides"));
  const auto offset = meta.at("storage_offset").at("as_int").get<std::int64_t>();
  const auto [data, size] = record_of(record);
  const auto count = static_cast<std::int64_t>(size / c10::elementSize(*dtype));
  const auto reach = reach_of(sizes, strides, offset);
  if (reach < 0 || reach > count || !product_is_within(sizes, count)) {
    refuse(record + " has " + std::to_string(size) + " bytes, which do not fit its sizes");
  }
  auto storage = at::empty({count}, *dtype);
  if (size > 0)
    std::memcpy(storage.mutable_data_ptr(), data.get(), static_cast<std::size_t>(count) * c10::elementSize(*dtype));
  // A tensor of its own: autocast keeps no casts of views.
  return reach == 0 ? at::empty(sizes, *dtype) : storage.as_strided(sizes, strides, offset).clone().detach();
}

std::map<std::string, torch::Tensor> Archive::tensors(const std::string& folder) {
  std::map<std::string, torch::Tensor> by_name, by_record;
  try {
    const auto entries = config(folder);
    for (const auto& [name, entry] : entries.items()) {
      if (entry.at("use_pickle").get<bool>()) refuse("'" + name + "' is pickled; export a model of plain tensors");
      const auto record = folder + "/" + entry.at("path_name").get<std::string>();
      auto& known = by_record[record];
      if (!known.defined()) {
        known = tensor(record, entry.at("tensor_meta"));
        const bool wants_grad =
            entry.at("is_param").get<bool>() && entry.at("tensor_meta").at("requires_grad").get<bool>();
        if (wants_grad && known.is_floating_point()) known.set_requires_grad(true);
      }
      by_name[name] = known;
    }
  } catch (const nlohmann::json::exception& error) {
    refuse("its list of " + folder + " is damaged (" + vernier::message(error) + ")");
  }
  return by_name;
}

std::string Archive::with(const std::map<std::string, torch::Tensor>& tensors) {
  std::map<std::string, torch::Tensor> changed;  // by record
  const auto entries = config(weights);
  for (const auto& [name, entry] : entries.items()) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    const auto& meta = entry.at("tensor_meta");
    const auto storage_size =
        reader_->getRecordSize(std::string(weights) + "/" + entry.at("path_name").get<std::string>());
    const auto dtype = found->second.scalar_type();
    auto storage = at::zeros({static_cast<std::int64_t>(storage_size / c10::elementSize(dtype))}, dtype);
    storage.as_strided(integers(meta.at("sizes")), integers(meta.at("strides")), meta.at("storage_offset").at("as_int"))
        .copy_(found->second.detach());
    changed[std::string(weights) + "/" + entry.at("path_name").get<std::string>()] = storage;
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
