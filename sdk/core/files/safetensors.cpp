// The format: the header's length (8 bytes, little-endian), the header (JSON, padded with spaces to a multiple of 8),
// and the tensors' bytes without a gap. The header has {"dtype", "shape", "data_offsets": [begin, end)} for each name,
// with offsets from the end of the header. It may have "__metadata__", texts by name.
#include <ATen/EmptyTensor.h>
#include <fcntl.h>
#include <torch/types.h>
#include <vernier/json_text.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <future>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "base/parts.h"
#include "huge_pages.h"
#include "json.h"
#include "safetensors_file.h"

namespace vernier {
namespace {

using Entry = SafetensorsFile::Entry;
static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian numbers");

constexpr std::uint64_t longest_header = 100'000'000;  // the format's own limit
constexpr std::size_t deepest_header = 8;              // the format needs 3
constexpr const char* metadata_key = "__metadata__";
constexpr std::int64_t device_chunk = 64 << 20;   // bytes that are copied from a device at a time
constexpr std::uint64_t checked_chunk = 1 << 18;  // small enough to stay in the cache until its checksum is computed
constexpr std::uint64_t written_chunk = 1 << 20;  // bytes between two calls of progress

struct Dtype {
  const char* name;
  torch::ScalarType type;
};
// In the order of the tensors in a file, as the format's own library writes them: the most strictly aligned first.
constexpr Dtype dtypes[] = {
    {"U64", torch::kUInt64},
    {"I64", torch::kInt64},
    {"F64", torch::kFloat64},
    {"C64", torch::kComplexFloat},
    {"F32", torch::kFloat32},
    {"U32", torch::kUInt32},
    {"I32", torch::kInt32},
    {"BF16", torch::kBFloat16},
    {"F16", torch::kFloat16},
    {"U16", torch::kUInt16},
    {"I16", torch::kInt16},
    {"F8_E5M2FNUZ", torch::kFloat8_e5m2fnuz},
    {"F8_E4M3FNUZ", torch::kFloat8_e4m3fnuz},
    {"F8_E8M0", torch::kFloat8_e8m0fnu},
    {"F8_E4M3", torch::kFloat8_e4m3fn},
    {"F8_E5M2", torch::kFloat8_e5m2},
    {"I8", torch::kInt8},
    {"U8", torch::kUInt8},
    {"BOOL", torch::kBool},
};

const Dtype& dtype_of(torch::ScalarType type) {
  return *std::ranges::find(dtypes, type, &Dtype::type);
}

// The length and the header.
std::string read_head(const File& file, std::uint64_t size) {
  if (size < 8) fail(file.path(), "is not a safetensors file: it has " + std::to_string(size) + " bytes");
  std::uint64_t length = 0;
  file.read(&length, 8, 0);
  if (length > longest_header) {
    fail(file.path(), "is not a safetensors file: its header would have " + std::to_string(length) + " bytes");
  }
  if (length > size - 8) {
    fail(file.path(),
         "is cut short: the header has " + std::to_string(length) + " bytes, the file " + std::to_string(size));
  }
  std::string head(8 + length, '\0');
  file.read(head.data(), head.size(), 0);
  return head;
}

std::optional<Metadata> parse_metadata(const std::string& path, const Json& json) {
  if (json.is_null()) return std::nullopt;
  if (!json.is_object()) fail(path, "the metadata is not an object");
  Metadata metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail(path, "the metadata's '" + key + "' is not a text");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

torch::ScalarType parse_dtype(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_string()) fail(path, name, "its dtype is not a text");
  const auto text = json.get<std::string>();
  const auto* dtype = std::ranges::find(dtypes, text, &Dtype::name);
  if (dtype == std::end(dtypes)) fail(path, name, "its dtype '" + text + "' is unknown");
  return dtype->type;
}

std::vector<std::int64_t> parse_numbers(const std::string& path, const std::string& name, const char* what,
                                        const Json& json) {
  if (!json.is_array()) fail(path, name, std::string("its ") + what + " is not an array");
  std::vector<std::int64_t> numbers;
  numbers.reserve(json.size());
  for (const Json& number : json) {
    const bool natural = number.is_number_unsigned();
    if (!natural || number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      fail(path, name, std::string("its ") + what + " has " + json_text(number) + ", which is not a size");
    }
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_object()) fail(path, name, "its entry in the header is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) fail(path, name, std::string("its entry in the header has no '") + key + "'");
  }
  Entry entry;
  entry.name = name;
  entry.type = parse_dtype(path, name, json["dtype"]);
  entry.shape = parse_numbers(path, name, "shape", json["shape"]);
  const auto offsets = parse_numbers(path, name, "data_offsets", json["data_offsets"]);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) fail(path, name, "its data_offsets are not a begin and an end");
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);
  const auto bytes = bytes_of(entry.shape, entry.type);
  if (!bytes) fail(path, name, "its shape is too large");
  if (*bytes != entry.end - entry.begin) {
    fail(path, name,
         "its dtype and shape need " + std::to_string(*bytes) + " bytes, its data_offsets are " +
             std::to_string(entry.end - entry.begin) + " apart");
  }
  return entry;
}

// Every byte after the header belongs to exactly one tensor.
void check_layout(const std::string& path, const std::vector<Entry>& entries, std::uint64_t data_size) {
  std::uint64_t next = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < next) fail(path, entry.name, "its bytes overlap those of another tensor");
    if (entry.begin > next) fail(path, entry.name, "there is a hole before its bytes");
    next = entry.end;
  }
  if (next > data_size) {
    const auto torn = std::ranges::find_if(entries, [&](const Entry& entry) { return entry.end > data_size; });
    fail(path, "is cut short: its tensors need " + std::to_string(next) + " bytes, there are " +
                   std::to_string(data_size) + "; '" + torn->name + "' is the first that is not whole");
  }
  if (next < data_size) fail(path, "has " + std::to_string(data_size - next) + " bytes too many after its tensors");
}

// A C++ bool with another byte is undefined behaviour.
void refuse_other_than_bool(const std::string& path, const Entry& entry, const char* bytes, std::uint64_t count) {
  if (entry.type != torch::kBool) return;
  const auto is_bool = [](char byte) { return byte == 0 || byte == 1; };
  if (!std::all_of(bytes, bytes + count, is_bool)) fail(path, entry.name, "a BOOL of it is neither 0 nor 1");
}

// In the order of their bytes.
std::vector<Entry> parse_header(const std::string& path, const std::string& text, std::uint64_t data_size,
                                std::optional<Metadata>& metadata) {
  const auto parsed = parse_json(path, "header", text, deepest_header);
  const Json& header = parsed.value;
  if (!header.is_object()) fail(path, "the header is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == metadata_key) {
      metadata = parse_metadata(path, json);
    } else {
      entries.push_back(parse_entry(path, name, json));
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
  check_layout(path, entries, data_size);
  return entries;
}

std::size_t rank_of(const std::string& path, const std::string& name, const torch::Tensor& tensor) {
  if (const auto why = why_not_saved(tensor); !why.empty()) fail(path, name, why);
  return static_cast<std::size_t>(&dtype_of(tensor.scalar_type()) - std::begin(dtypes));
}

// A tensor to write. rank: of its dtype in `dtypes`.
struct Item {
  std::size_t rank;
  const std::string* name;
  const torch::Tensor* tensor;
};

std::vector<Item> lay_out(const std::string& path, const Tensors& tensors) {
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    if (name == metadata_key) fail(path, name, "the name is reserved");
    items.push_back({rank_of(path, name, tensor), &name, &tensor});
  }
  std::ranges::stable_sort(items, {}, &Item::rank);  // keeps the order of the names
  return items;
}

// The length and the header.
std::string make_head(const std::string& path, const std::vector<Item>& items,
                      const std::optional<Metadata>& metadata) {
  std::vector<std::string> entries;
  if (metadata) {
    const auto text = [&](const auto& entry) { return quoted(path, entry.first) + ":" + quoted(path, entry.second); };
    entries.push_back('"' + std::string(metadata_key) + "\":" + joined("{", *metadata, ",", "}", text));
  }
  std::size_t offset = 0;
  for (const auto& [rank, name, tensor] : items) {
    const std::size_t end = offset + tensor->nbytes();
    const auto shape = joined("[", tensor->sizes(), ",", "]", [](auto size) { return std::to_string(size); });
    entries.push_back(quoted(path, *name) + R"(:{"dtype":")" + dtypes[rank].name + R"(","shape":)" + shape +
                      R"(,"data_offsets":[)" + std::to_string(offset) + "," + std::to_string(end) + "]}");
    offset = end;
  }
  auto header = joined("{", entries, ",", "}", [](const auto& entry) { return entry; });
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > longest_header) fail(path, "the names and shapes need a header of more than 100 MB");
  const std::uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  return header;
}

using Progress = std::function<void(std::uint64_t)>;

// Adds the bytes to `checksum` if there is one.
void write_chunks(File& file, const torch::Tensor& flat, Checksum* checksum, const Progress& progress) {
  const auto* bytes = static_cast<const char*>(flat.const_data_ptr());
  for (std::uint64_t done = 0; done < flat.nbytes(); done += written_chunk) {
    const auto count = std::min<std::uint64_t>(written_chunk, flat.nbytes() - done);
    if (checksum != nullptr) checksum->add(bytes + done, count);
    file.write(bytes + done, count);
    if (progress) progress(count);
  }
}

void write_tensor(File& file, const torch::Tensor& tensor, Checksum* checksum, const Progress& progress) {
  const torch::NoGradGuard no_grad;
  const auto flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1);
  if (flat.is_cpu()) return write_chunks(file, flat, checksum, progress);
  const auto step = device_chunk / static_cast<std::int64_t>(flat.element_size());
  for (std::int64_t first = 0; first < flat.numel(); first += step) {
    const auto chunk = flat.narrow(0, first, std::min(step, flat.numel() - first)).to(torch::kCPU);
    write_chunks(file, chunk, checksum, progress);
  }
}

// True if the bytes of the file are those of the tensor's memory.
bool lies_as_written(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// For the tensors that lie in memory as they are written; "" for the others.
std::vector<std::string> checksums_of(const std::vector<Item>& items) {
  std::vector<std::string> digits(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& tensor = *items[i].tensor;
    if (!lies_as_written(tensor)) continue;
    Checksum checksum;
    checksum.add(tensor.const_data_ptr(), tensor.nbytes());
    digits[i] = checksum.digits();
  }
  return digits;
}

// If LibTorch has more than one thread, a second thread computes most of the checksums while this one writes. If it has
// one, the other cores belong to somebody else.
CheckpointManifest::File write_checked(File& file, const std::vector<Item>& items, const std::string& head,
                                       const Progress& progress) {
  const bool has_second = at::get_num_threads() > 1;
  std::future<std::vector<std::string>> taken;
  if (has_second) taken = std::async(std::launch::async, [&] { return checksums_of(items); });
  file.write(head.data(), head.size());
  CheckpointManifest::File written{head.size(), checksum_of(head), {}};
  for (const auto& [rank, name, tensor] : items) {
    const bool is_taken = has_second && lies_as_written(*tensor);
    Checksum checksum;
    write_tensor(file, *tensor, is_taken ? nullptr : &checksum, progress);
    written.bytes += tensor->nbytes();
    written.tensors[*name] = {dtypes[rank].name, tensor->sizes().vec(), is_taken ? "" : checksum.digits()};
  }
  if (!has_second) return written;
  const auto digits = taken.get();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!digits[i].empty()) written.tensors[*items[i].name].checksum = digits[i];
  }
  return written;
}

}  // namespace

std::string why_not_saved(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "it is undefined and cannot be saved; leave it out";
  if (tensor.is_quantized()) return "a quantized tensor cannot be saved; save int_repr(), scale and zero point";
  if (tensor.is_nested()) return "a nested tensor cannot be saved; save its parts";
  if (tensor.layout() != torch::kStrided) return "only dense tensors can be saved; save indices and values of this one";
  if (tensor.is_meta()) return "only dense tensors can be saved, and this one, on meta, has no values";
  if (std::ranges::find(dtypes, tensor.scalar_type(), &Dtype::type) == std::end(dtypes))
    return std::string("its dtype ") + c10::toString(tensor.scalar_type()) + " has no name in safetensors";
  if (!tensor.has_storage()) return "a tensor without memory of its own cannot be saved; save a clone";
  const auto needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                       static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() == 0 || tensor.storage().nbytes() >= needed) return "";
  return "its memory is too small for its shape, so it cannot be saved; save a clone that is made while it is whole";
}

std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, torch::ScalarType type) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(type));
  bool is_empty = false;
  for (const auto size : shape) {
    if (size < 0) return {};
    is_empty |= size == 0;  // LibTorch computes strides of empty tensors too, so the others must not overflow
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return {};
  }
  return is_empty ? 0 : static_cast<std::uint64_t>(bytes);
}

SafetensorsFile::SafetensorsFile(const std::string& path, int flags)
    : file_(path, O_RDONLY | O_NONBLOCK | flags),  // opening a pipe must not wait for its writer
      size_(file_.size()),
      head_(read_head(file_, size_)),
      entries_(parse_header(path, head_.substr(8), size_ - head_.size(), metadata_)) {}

CheckpointManifest::File SafetensorsFile::description() const {
  CheckpointManifest::File file{size_, checksum_of(head_), {}};
  for (const Entry& entry : entries_) file.tensors[entry.name] = {dtype_of(entry.type).name, entry.shape, ""};
  return file;
}

void SafetensorsFile::read(const Entry& entry, const torch::Tensor& into, Checksum* checksum) const {
  auto* bytes = static_cast<char*>(into.mutable_data_ptr());
  const std::uint64_t size = entry.end - entry.begin;
  const std::uint64_t chunk = checksum == nullptr ? size : checked_chunk;
  for (std::uint64_t done = 0; done < size; done += chunk) {
    const auto count = std::min(chunk, size - done);
    file_.read(bytes + done, count, head_.size() + entry.begin + done);
    if (checksum != nullptr) checksum->add(bytes + done, count);
  }
  refuse_other_than_bool(path(), entry, bytes, size);
}

void SafetensorsFile::for_each_entry(const std::function<void(const Entry&)>& body) const {
  // The largest first: one thread reads a whole tensor, and the others should not wait for a large one at the end.
  std::vector<std::size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](auto i) { return entries_[i].end - entries_[i].begin; });
  std::vector<std::exception_ptr> trouble(entries_.size());
  for_each_part(order.size(), [&](std::size_t i) {
    try {
      body(entries_[order[i]]);
    } catch (...) {
      trouble[order[i]] = std::current_exception();
    }
  });
  for (const auto& each : trouble) {
    if (each) std::rethrow_exception(each);
  }
}

Tensors SafetensorsFile::read_all(const Check& check, const std::function<bool(const Entry&)>& leaves_out) const try {
  std::vector<std::uint64_t> sizes;
  std::vector<const Entry*> taken;
  for (const Entry& entry : entries_) {
    if (leaves_out && leaves_out(entry)) continue;
    taken.push_back(&entry);
    sizes.push_back(entry.end - entry.begin < HugePages::smallest ? 0 : entry.end - entry.begin);
  }
  const HugePages memory(sizes);
  Tensors tensors;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto& [name, type, shape, begin, end] = *taken[i];
    tensors[name] = sizes[i] == 0 ? at::empty(shape, type) : memory.tensor(i, shape, type);
  }
  for_each_entry([&](const Entry& entry) {
    const auto place = tensors.find(entry.name);
    if (place == tensors.end()) return verify(entry, check);
    Checksum checksum;
    read(entry, place->second, check ? &checksum : nullptr);
    if (check) check(entry.name, checksum);
  });
  return tensors;
} catch (const std::bad_alloc&) {
  fail(path(), "there is no memory for its " + std::to_string(size_) + " bytes");
}

void SafetensorsFile::verify(const Entry& entry, const Check& check) const {
  char bytes[checked_chunk];
  Checksum checksum;
  for (std::uint64_t done = entry.begin; done < entry.end;) {
    const auto count = std::min<std::uint64_t>(sizeof bytes, entry.end - done);
    file_.read(bytes, count, head_.size() + done);
    checksum.add(bytes, count);
    refuse_other_than_bool(path(), entry, bytes, count);
    done += count;
  }
  if (check) check(entry.name, checksum);
}

void SafetensorsFile::verify_all(const Check& check) const {
  for_each_entry([&](const Entry& entry) { verify(entry, check); });
}

CheckpointManifest::File write_safetensors(File& file, const Tensors& tensors, const Metadata& metadata,
                                           const Progress& progress) {
  const auto items = lay_out(file.path(), tensors);
  return write_checked(file, items, make_head(file.path(), items, metadata), progress);
}

Safetensors read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  return {file.read_all(), file.metadata()};
}

Tensors load_safetensors(const std::string& path) {
  return read_safetensors(path).tensors;
}

void save_safetensors(const std::string& path, const Tensors& tensors, const std::optional<Metadata>& metadata) {
  const auto items = lay_out(path, tensors);
  const auto head = make_head(path, items, metadata);
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);  // opened only now: an Error above leaves an existing file as it is
  file.write(head.data(), head.size());
  for (const Item& item : items) write_tensor(file, *item.tensor, nullptr, {});
  file.finish();
}

}  // namespace vernier
