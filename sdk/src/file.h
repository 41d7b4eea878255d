// Files and folders as the formats on disk need them: every call retried where a signal came, every failure told with
// path and errno.
#pragma once

#include <sys/types.h>
#include <vernier/error.h>

#include <cstdint>
#include <string>

namespace vernier {

[[noreturn]] void fail(const std::string& path, const std::string& what);
[[noreturn]] void fail_with_errno(const std::string& path, const std::string& doing);
[[noreturn]] void fail(const std::string& path, const std::string& tensor, const std::string& what);

class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0666);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();
  const std::string& path() const { return path_; }

  std::uint64_t size() const;                                            // refuses what is no regular file
  void read(void* to, std::uint64_t count, std::uint64_t offset) const;  // any thread
  void write(const void* from, std::uint64_t count);
  void finish();  // brings it to the disk and closes it

 private:
  std::string path_;
  int descriptor_;
};

void sync_folder(const std::string& folder);

}  // namespace vernier
