// The reader of IDX files; idx.h says what it refuses.
#include "idx.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <zlib.h>

#include <memory>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw vernier::Error("'" + path + "' " + reason, vernier::Error::Kind::configuration);
}

// zlib reads files that are not packed as they are.
std::string contents(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) fail(path, "cannot be opened; paths are relative to the working folder");
  std::string bytes;
  std::vector<char> buffer(1 << 16);
  int count = 0;
  while ((count = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
  }
  int status = Z_OK;
  const std::string reason = gzerror(file.get(), &status);
  if (count < 0 || status != Z_OK) fail(path, "cannot be read: " + reason);
  return bytes;
}

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Checks the first four bytes; returns how long the whole header is.
std::size_t check_magic(const std::string& path, const std::string& bytes, std::int64_t dimensions) {
  constexpr char unsigned_byte = 0x08;
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0)
    fail(path, "is no IDX file: it does not begin with two zero bytes");
  if (bytes[2] != unsigned_byte)
    fail(path, c10::str("holds IDX type ", int{bytes[2]}, "; wanted is 8, unsigned bytes"));
  if (bytes[3] != dimensions) fail(path, c10::str("has ", int{bytes[3]}, " dimensions; wanted are ", dimensions));
  const auto header = 4 + 4 * static_cast<std::size_t>(dimensions);
  if (bytes.size() < header) fail(path, "ends within its header");
  return header;
}

}  // namespace

torch::Tensor read_idx(const std::string& path, std::int64_t dimensions) {
  const auto bytes = std::make_shared<std::string>(contents(path));
  const auto header = check_magic(path, *bytes, dimensions);
  const auto payload = bytes->size() - header;
  std::vector<std::int64_t> sizes;
  std::uint64_t elements = 1;
  bool too_large = false;
  for (std::size_t at = 4; at < header; at += 4) {
    sizes.push_back(big_endian(*bytes, at));
    too_large |= __builtin_mul_overflow(elements, static_cast<std::uint64_t>(sizes.back()), &elements);
  }
  if (too_large || elements != payload) {
    fail(path,
         c10::str("is ", too_large || elements > payload ? "cut short" : "too long", ": its sizes ", sizes, " need ",
                  too_large ? "more than any file has" : std::to_string(elements) + " bytes", ", it has ", payload));
  }
  return torch::from_blob(
      bytes->data() + header, sizes, [bytes](void*) {}, torch::kUInt8);
}
