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
  void write(const void* from, std::uint64_t count);
  void finish();  // brings it to the disk and closes it

 private:
  friend class MappedFile;
  std::string path_;
  int descriptor_;
};

// A file's bytes where the system has them, without a copy, as long as nobody wants to write to it: a lease tells, and
// holds writers back meanwhile. Where that cannot be had, or no longer, File::read serves.
class MappedFile {
 public:
  // size: that the file should have. Nothing where the system gives no lease (a file of another user, one that is open for
  // writing), where one would not bind other hosts, and where it cannot say beforehand that bytes can be read.
  static std::unique_ptr<MappedFile> of(const File& file, std::uint64_t size);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // The bytes, to be used within seconds; nullptr where they are to be read instead: somebody waits to write, or the disk
  // fails, which would be a signal here. Any thread.
  const char* at(std::uint64_t offset, std::uint64_t count) const;
  bool is_leased() const;

 private:
  MappedFile(const File& file, char* bytes, std::uint64_t size) : file_(file), bytes_(bytes), size_(size) {}
  const File& file_;
  char* bytes_;
  std::uint64_t size_;
};

void sync_folder(const std::string& folder);

}  // namespace vernier
