// A data file whose bytes are mapped into memory: nothing is read before it is needed, and the file may be larger than
// the memory. All errors are of Error::Kind::configuration and begin with the path, in quotes.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>
#include <vernier/data_file.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

// Any thread may call the functions. Tensors may write to the bytes; the writes stay in this process.
//
// If another process truncates the file, the system ends this process with SIGBUS when it reads the missing bytes.
// Call require_unchanged() before a record is read: then only a file that shrinks within that read does it.
class VERNIER_API MappedFile : public std::enable_shared_from_this<MappedFile> {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {begin_, size_}; }
  // Throws Error if the size or the time of the last change differs from when it was opened. It takes 0.3 us.
  void require_unchanged() const;
  // Copies bytes of the file as it is on the disk. Unlike bytes(), it leaves no pages in the memory of this process.
  void read(std::size_t from, char* to, std::size_t count) const;
  // Drops the pages of a part of bytes() from the memory of this process, and reads them again when they are needed.
  // For bytes that nobody has written to. A text that is elsewhere stays as it is.
  void forget(std::string_view part) const;
  // "1024 bytes, XXH3 0123…". The checksum is of all bytes of a file up to 256 MB. Of a larger one it is of 256 blocks
  // of 1 MB, evenly spaced, with the first and the last.
  std::string fingerprint() const;
  [[noreturn]] void refuse(const std::string& reason) const;
  // Throws Error if a line, counted from 1, has more bytes than the memory of a reader should need.
  void check_line(std::size_t line, std::size_t bytes) const;

  // A tensor of the bytes from `offset`, which keeps the mapping. Bytes that are not aligned for the type are copied.
  // Throws Error if the file has fewer bytes, or other bytes than 0 and 1 for a bool; name: "the array" or "tensor
  // 'x'".
  torch::Tensor tensor(std::uint64_t offset, const std::vector<std::int64_t>& shape, torch::ScalarType type,
                       const std::string& name) const;

 private:
  explicit MappedFile(const std::string& path);

  std::string path_;
  DataFile file_;
  std::int64_t changed_seconds_ = 0, changed_nanoseconds_ = 0;
  std::size_t size_ = 0;
  char* begin_ = nullptr;
};

using MappedFilePtr = std::shared_ptr<const MappedFile>;

}  // namespace vernier
