// Files that a user names: configurations and data. Only regular files are read: a pipe may never be written to, and a
// device may have no end. All errors are of Error::Kind::configuration and begin with the path, in quotes.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <string>

namespace vernier {

class VERNIER_API DataFile {
 public:
  // Looks at the file before it opens it, since opening a pipe waits for its writer.
  explicit DataFile(const std::string& path);
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile();

  // When it was opened. 0 for a file of /proc, which has bytes all the same.
  std::uint64_t size() const { return size_; }
  // Reads the next bytes, from the beginning. Returns fewer than `count` only at the end of the file.
  std::size_t read(void* to, std::size_t count);
  int descriptor() const { return descriptor_; }  // for a library that reads by itself; the DataFile closes it
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Returns all bytes of a file. Refuses more than `most` bytes, and does not read them.
VERNIER_API std::string read_data_file(const std::string& path, std::uint64_t most);

}  // namespace vernier
