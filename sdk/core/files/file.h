// Files and folders for the formats on disk. System calls that a signal interrupts are retried. Failures throw Error
// with the path and the text of errno.
#pragma once

#include <sys/types.h>
#include <vernier/error.h>
#include <vernier/folders.h>

#include <cstdint>
#include <string>

namespace vernier {

// Throw Error: "path: what", "path: doing: the system's reason", "path: tensor 'name': what".
[[noreturn]] void fail(const std::string& path, const std::string& what);
[[noreturn]] void fail_with_errno(const std::string& path, const std::string& doing);
[[noreturn]] void fail(const std::string& path, const std::string& tensor, const std::string& what);

class VERNIER_API File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0666);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();
  const std::string& path() const { return path_; }

  std::uint64_t size() const;                                            // throws Error unless it is a regular file
  void read(void* to, std::uint64_t count, std::uint64_t offset) const;  // any thread
  void write(const void* from, std::uint64_t count);
  void finish();  // fsync, then close

 private:
  std::string path_;
  int descriptor_;
};

void sync_folder(const std::string& folder);  // fsync

}  // namespace vernier
