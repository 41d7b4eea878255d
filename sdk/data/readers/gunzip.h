// Unpacks gzip files, whose members may follow one another.
#pragma once

#include <vernier/abi.h>
#include <vernier/data_file.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace vernier {

class MappedFile;

// Returns the most bytes that every reader unpacks from so many packed ones. Data reach it hardly ever, and a file that
// was made to fill the memory goes beyond it: 200 times the packed size, or 256 MB if that is more.
constexpr std::uint64_t most_unpacked(std::uint64_t packed) {
  return std::max<std::uint64_t>(256'000'000, 200 * packed);
}

class VERNIER_API Gunzip {
 public:
  static bool is_packed(std::string_view begin) { return begin.starts_with("\x1f\x8b"); }
  // source: returns the next bytes of the file, which stay until it is called again; none at its end.
  Gunzip(std::string path, std::function<std::string_view()> source);
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;
  ~Gunzip();
  // Reads the next unpacked bytes. Returns fewer than `count` only at the end. Throws Error for a damaged file, and for
  // one that unpacks to more than most_unpacked().
  std::size_t read(char* to, std::size_t count);

 private:
  struct Stream;
  std::string path_;
  std::function<std::string_view()> source_;
  std::string_view rest_;
  std::uint64_t taken_ = 0, made_ = 0;  // packed and unpacked bytes up to here
  bool is_in_member_ = true;            // a file without a byte is unfinished, too
  std::unique_ptr<Stream> stream_;
};

// A file that is read from its beginning, unpacked if gzip has packed it.
class VERNIER_API UnpackedFile {
 public:
  explicit UnpackedFile(const std::string& path);
  // Reads the next bytes. Returns fewer than `count` only at the end. Throws Error for a damaged file.
  std::size_t read(char* to, std::size_t count);
  bool is_packed() const { return packed_.has_value(); }
  std::uint64_t size() const { return file_.size(); }  // size on the disk
  [[noreturn]] void refuse(const std::string& reason) const { file_.refuse(reason); }

 private:
  std::string_view next_block();
  DataFile file_;
  std::string block_;
  std::string_view rest_;  // rest of the first block, if the file is not packed
  std::optional<Gunzip> packed_;
};

// Returns all of a packed file, which must not be empty.
VERNIER_API std::string gunzipped(const MappedFile& file);

}  // namespace vernier
