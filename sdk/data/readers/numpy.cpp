#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "arrays.h"
#include "base/given.h"
#include "files/safetensors_file.h"
#include "zip.h"

namespace vernier {

namespace {

struct NumpyType {
  std::string_view name;
  torch::ScalarType type;
};
constexpr NumpyType numpy_types[] = {
    {"|b1", torch::kBool},   {"|i1", torch::kInt8},    {"|u1", torch::kUInt8},   {"<i2", torch::kInt16},
    {"<i4", torch::kInt32},  {"<i8", torch::kInt64},   {"<u2", torch::kUInt16},  {"<u4", torch::kUInt32},
    {"<u8", torch::kUInt64}, {"<f2", torch::kFloat16}, {"<f4", torch::kFloat32}, {"<f8", torch::kFloat64},
};

// The header of an array: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
struct NumpyHeader {
  torch::ScalarType type = torch::kFloat32;
  bool is_fortran = false;
  std::vector<std::int64_t> shape;
  std::uint64_t size = 0;  // bytes before the elements
};

// Reads the header, which is a Python dictionary. `bytes` are those of the array, within `file`.
class NumpyHeaderReader {
 public:
  NumpyHeaderReader(const MappedFile& file, std::string_view bytes, std::string name)
      : file_(file), bytes_(bytes), name_(std::move(name)) {}

  NumpyHeader read() {
    find_text();
    expect('{');
    bool has_type = false, has_order = false, has_shape = false;
    while (!accepts('}')) {
      const auto key = quoted();
      expect(':');
      if (key == "descr" && !has_type) {
        has_type = true;
        read_type();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        read_order();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        read_shape();
      } else {
        refuse("has the key '" + shortened(std::string(key)) + "', or has it twice");
      }
      if (!accepts(',') && !text_.starts_with('}')) refuse("has no comma where one belongs");
    }
    if (!has_type || !has_order || !has_shape) refuse("lacks 'descr', 'fortran_order' or 'shape'");
    return header_;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    file_.require_unchanged();
    file_.refuse("is not an array of NumPy: the header of " + name_ + " " + reason);
  }
  void find_text() {
    constexpr std::string_view magic = "\x93NUMPY";
    if (bytes_.substr(0, magic.size()) != magic) refuse("does not begin with \\x93NUMPY");
    if (bytes_.size() < 10) refuse("is cut short");
    const int version = static_cast<unsigned char>(bytes_[6]);
    if (version < 1 || version > 3) refuse(c10::str("has version ", version, "; read are 1 to 3"));
    const std::size_t width = version == 1 ? 2 : 4;  // width of the header's length
    if (bytes_.size() < 8 + width) refuse("is cut short");
    std::uint32_t length = 0;
    std::memcpy(&length, bytes_.data() + 8, width);
    if (length > bytes_.size() - 8 - width) refuse("is cut short");
    header_.size = 8 + width + length;
    text_ = bytes_.substr(8 + width, length);
  }
  void skip_spaces() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }
  bool accepts(char c) {
    skip_spaces();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    skip_spaces();
    return true;
  }
  void expect(char c) {
    if (!accepts(c)) refuse(c10::str("lacks '", c, "'"));
  }
  std::string_view quoted() {
    const char quote = text_.starts_with('"') ? '"' : '\'';
    if (!text_.starts_with(quote)) refuse("is not a dictionary of numbers and texts");
    const auto end = text_.find(quote, 1);
    if (end == std::string_view::npos) refuse("has a text without an end");
    const auto text = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    skip_spaces();
    return text;
  }
  void read_type() {
    if (text_.starts_with('[')) file_.refuse(name_ + " has records as elements; save each field as an array");
    const auto type = quoted();
    const auto* known = std::ranges::find(numpy_types, type, &NumpyType::name);
    if (known == std::end(numpy_types)) {
      file_.refuse(c10::str(name_, " has elements of type '", shortened(std::string(type)),
                            "', which is not read; convert it in NumPy: array.astype('<f4'), '<i8', '|u1' or '|b1'"));
    }
    header_.type = known->type;
  }
  void read_order() {
    header_.is_fortran = text_.starts_with("True");
    if (!header_.is_fortran && !text_.starts_with("False")) refuse("has a fortran_order that is not True or False");
    text_.remove_prefix(header_.is_fortran ? 4 : 5);
  }
  void read_shape() {
    expect('(');
    while (!accepts(')')) {
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) refuse("has a shape that is not a tuple of sizes");
      header_.shape.push_back(size);
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      if (!accepts(',') && !text_.starts_with(')')) refuse("has a shape that is not a tuple of sizes");
    }
  }

  const MappedFile& file_;
  std::string_view bytes_, text_;
  std::string name_;
  NumpyHeader header_;
};

// Throws Error unless the elements take all bytes that follow the header.
void check_size(const MappedFile& file, const NumpyHeader& header, std::uint64_t size, const std::string& name) {
  const auto bytes = bytes_of(header.shape, header.type);
  if (bytes && *bytes == size - header.size) return;
  file.require_unchanged();
  file.refuse(c10::str(!bytes || *bytes > size - header.size ? "is cut short: " : "is too long: ", name, " of shape ",
                       c10::IntArrayRef(header.shape), " needs ", bytes ? std::to_string(*bytes) : "more than 2^63",
                       " bytes, there are ", size - header.size));
}

torch::Tensor in_order(torch::Tensor tensor, const NumpyHeader& header) {
  if (!header.is_fortran) return tensor;
  std::vector<std::int64_t> axes(header.shape.size());
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<std::int64_t>(axes.size() - 1 - i);
  return tensor.permute(axes);
}

// The bytes in the file from `begin`.
torch::Tensor array_of(const MappedFile& file, std::uint64_t begin, std::uint64_t size, const std::string& name) {
  auto header = NumpyHeaderReader(file, file.bytes().substr(begin, size), name).read();
  check_size(file, header, size, name);
  if (header.is_fortran) std::ranges::reverse(header.shape);
  return in_order(file.tensor(begin + header.size, header.shape, header.type, name), header);
}

torch::Tensor unpacked_array(const MappedFile& file, std::string bytes, const std::string& name) {
  auto header = NumpyHeaderReader(file, bytes, name).read();
  check_size(file, header, bytes.size(), name);
  if (header.is_fortran) std::ranges::reverse(header.shape);
  const auto tensor = at::empty(header.shape, header.type);
  const auto elements = std::string_view(bytes).substr(header.size);
  if (header.type == torch::kBool && !std::ranges::all_of(elements, [](char c) { return c == 0 || c == 1; })) {
    file.refuse("is damaged: " + name + " has a bool that is neither 0 nor 1");
  }
  if (!elements.empty()) std::memcpy(tensor.mutable_data_ptr(), elements.data(), elements.size());
  return in_order(tensor, header);
}

torch::Tensor array_of(const MappedFile& file, const ZipMember& member) {
  const auto name = "array '" + shortened(member.name) + "'";
  if (!member.is_deflated) {
    check_crc(file, member, file.bytes().substr(member.begin, member.unpacked));
    return array_of(file, member.begin, member.unpacked, name);
  }
  auto bytes = inflate(file, member);
  check_crc(file, member, bytes);
  return unpacked_array(file, std::move(bytes), name);
}

// The members of an archive by the names of their arrays.
std::map<std::string, ZipMember> members_of(const MappedFile& file) {
  constexpr std::string_view suffix = ".npy";
  std::map<std::string, ZipMember> members;
  file.require_unchanged();
  for (const auto& member : read_zip(file)) {
    auto name = member.name;
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    if (!members.emplace(name, member).second) file.refuse("has two arrays named '" + shortened(name) + "'");
  }
  return members;
}

// Others may be of types that are not read.
torch::Tensor array_of(const MappedFile& file, const std::map<std::string, ZipMember>& members,
                       const std::string& name) {
  if (const auto found = members.find(name); found != members.end()) return array_of(file, found->second);
  std::vector<std::string> there;
  for (const auto& [known, member] : members) there.push_back(known);
  file.refuse("has no array '" + shortened(name) + "'; it has " + shortened(some_of(there)));
}

torch::Tensor array_of(const MappedFile& file) {
  if (file.bytes().empty()) file.refuse("is empty");
  return array_of(file, 0, file.bytes().size(), "the array");
}

}  // namespace

torch::Tensor read_npy(const std::string& path) {
  if (const auto given = Given::array(path); given.defined()) return given;
  return array_of(*MappedFile::open(path));
}

Tensors read_npz(const std::string& path) {
  const auto file = MappedFile::open(path);
  Tensors arrays;
  for (const auto& [name, member] : members_of(*file)) arrays.emplace(name, array_of(*file, member));
  return arrays;
}

torch::Tensor read_npz(const std::string& path, const std::string& name) {
  const auto file = MappedFile::open(path);
  return array_of(*file, members_of(*file), name);
}

DatasetPtr numpy_dataset(const std::vector<std::string>& paths) {
  std::vector<NamedArray> arrays;
  std::vector<MappedFilePtr> files;
  for (const auto& path : paths) {
    files.push_back(MappedFile::open(path));
    arrays.push_back({"'" + path + "'", array_of(*files.back())});
  }
  return array_dataset(std::move(arrays), std::move(files));
}

DatasetPtr npz_dataset(const std::string& path, const std::vector<std::string>& names) {
  const auto file = MappedFile::open(path);
  const auto members = members_of(*file);
  std::vector<NamedArray> arrays;
  for (const auto& name : names) {
    arrays.push_back({"'" + path + "' array '" + name + "'", array_of(*file, members, name)});
  }
  return array_dataset(std::move(arrays), {file});
}

}  // namespace vernier
