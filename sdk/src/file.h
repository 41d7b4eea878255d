// Files and folders as the formats on disk need them: every call retried where a signal came, every failure told with
// path and errno.
#pragma once

#include <sys/types.h>
#include <vernier/error.h>

#include <cstdint>
#include <memory>
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
  std::string last_change() const;  // its time
  void write(const void* from, std::uint64_t count);
  void finish();  // brings it to the disk and closes it

 private:
  friend class MappedFile;
  std::string path_;
  int descriptor_;
};

// A file's bytes where the system has them, without a copy. While it is there nobody can write to the file: they wait.
class MappedFile {
 public:
  // Nothing where the system cannot promise that: a file of another user, one that is open for writing, some network file
  // systems. Then read() serves.
  static std::unique_ptr<MappedFile> of(const File& file);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // To be used at once. Throws what File::read throws where the disk fails; a fault on the bytes would be a signal. Any thread.
  const char* at(std::uint64_t offset, std::uint64_t count) const;

 private:
  MappedFile(const File& file, char* bytes, std::uint64_t size) : file_(file), bytes_(bytes), size_(size) {}
  const File& file_;
  char* bytes_;
  std::uint64_t size_;
};

void sync_folder(const std::string& folder);

}  // namespace vernier
