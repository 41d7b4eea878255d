// The reader of IDX files.
#include <c10/util/StringUtil.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <memory>
#include <vector>

#include "arrays.h"
#include "gunzip.h"

namespace vernier {

namespace {

[[noreturn]] void refuse_idx(const std::string& path, const std::string& reason) {
  refuse("'" + path + "' " + reason);
}

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Checks the first four bytes, and that the sizes follow.
void check_magic(const std::string& path, const std::string& bytes, std::int64_t dimensions) {
  constexpr char unsigned_byte = 0x08;
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0)
    refuse_idx(path, "is not an IDX file: it does not begin with two zero bytes");
  if (bytes[2] != unsigned_byte)
    refuse_idx(path, c10::str("holds IDX type ", int{bytes[2]}, "; wanted is 8, unsigned bytes"));
  if (bytes[3] != dimensions) refuse_idx(path, c10::str("has ", int{bytes[3]}, " dimensions; wanted are ", dimensions));
  if (bytes.size() < 4 + 4 * static_cast<std::size_t>(dimensions)) refuse_idx(path, "ends within its header");
}

}  // namespace

torch::Tensor read_idx(const std::string& path, std::int64_t dimensions, std::int64_t max_bytes) {
  UnpackedFile file(path);
  std::string head(4 + 4 * static_cast<std::size_t>(dimensions), '\0');
  head.resize(file.read(head.data(), head.size()));
  check_magic(path, head, dimensions);
  std::vector<std::int64_t> sizes;
  std::uint64_t elements = 1;
  bool too_large = false;
  for (std::size_t at = 4; at < head.size(); at += 4) {
    sizes.push_back(big_endian(head, at));
    too_large |= __builtin_mul_overflow(elements, static_cast<std::uint64_t>(sizes.back()), &elements);
  }
  const c10::IntArrayRef shape(sizes);
  const auto refuse_size = [&](const char* what, const std::string& has) {
    refuse_idx(path,
               c10::str("is ", what, ": its sizes ", shape, " need ",
                        too_large ? "more than any file has" : std::to_string(elements) + " bytes", ", it has ", has));
  };
  if (too_large) refuse_size("cut short", "fewer");
  if (!file.is_packed()) {  // its size shows at once what it has
    const auto payload = file.size() - head.size();
    if (elements != payload) refuse_size(elements > payload ? "cut short" : "too long", std::to_string(payload));
  }
  if (elements > static_cast<std::uint64_t>(max_bytes)) {
    refuse_idx(path, c10::str("has sizes ", shape, ", which are ", elements, " bytes, and max_bytes is ", max_bytes,
                              "; raise max_bytes if the memory has room for them"));
  }
  // The memory is not zeroed: a packed file may have less than its header says, and then most of it is never touched.
  const std::shared_ptr<char[]> bytes(new char[elements]);
  const auto count = file.read(bytes.get(), elements);
  if (count < elements) refuse_size("cut short", std::to_string(count));
  if (char more = 0; file.read(&more, 1) > 0) refuse_size("too long", "more");  // the end has the checksum, too
  return torch::from_blob(
      bytes.get(), shape, [bytes](void*) {}, torch::kUInt8);
}

DatasetPtr idx_dataset(const std::string& images, const std::string& labels, std::int64_t classes) {
  const auto pixels = read_idx(images, 3), numbers = read_idx(labels, 1).to(torch::kInt64);
  if (numbers.numel() == 0) refuse_idx(labels, "has no labels");
  const auto* label = numbers.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    if (label[i] < classes) continue;
    refuse_idx(labels, c10::str("sample ", i, " has the label ", label[i], "; with ", classes,
                                " classes the largest is ", classes - 1));
  }
  return array_dataset({{"'" + images + "'", pixels}, {"'" + labels + "'", numbers}}, {});
}

}  // namespace vernier
