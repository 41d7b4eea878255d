#include "file.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

namespace vernier {

namespace {

constexpr std::uint64_t written_at_once = 8 << 20;

// A failed fsync is final: the kernel may have dropped the pages, and a second call would report success.
bool is_synced(int descriptor) {
  int result = 0;
  do {
    result = ::fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EINVAL;  // a pipe, /dev/null or some folders have nothing to bring to a disk
}

}  // namespace

void fail(const std::string& path, const std::string& what) {
  throw Error(path + ": " + what);
}

void fail_with_errno(const std::string& path, const std::string& doing) {
  fail(path, doing + ": " + std::generic_category().message(errno));
}

void fail(const std::string& path, const std::string& tensor, const std::string& what) {
  fail(path, "tensor '" + tensor + "': " + what);
}

File::File(const std::string& path, int flags, mode_t mode) : path_(path), descriptor_(-1) {
  do {
    descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail_with_errno(path, "cannot be opened");
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t File::size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail_with_errno(path_, "cannot be read");
  if (S_ISDIR(status.st_mode)) fail(path_, "is a directory, not a file");
  if (!S_ISREG(status.st_mode)) fail(path_, "is not a regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

void File::read(void* to, std::uint64_t count, std::uint64_t offset) const {
  auto* bytes = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t done = ::pread(descriptor_, bytes, count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno(path_, "cannot be read");
    if (done == 0) fail(path_, "became shorter while it was read");
    bytes += done;
    offset += static_cast<std::uint64_t>(done);
    count -= static_cast<std::uint64_t>(done);
  }
}

void File::write(const void* from, std::uint64_t count) {
  const auto* bytes = static_cast<const char*>(from);
  while (count > 0) {
    const ssize_t done = ::write(descriptor_, bytes, std::min(count, written_at_once));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno(path_, "cannot be written");
    if (done == 0) fail(path_, "cannot be written: the system takes no more bytes and gives no reason");
    bytes += done;
    count -= static_cast<std::uint64_t>(done);
  }
}

void File::finish() {
  if (!is_synced(descriptor_)) fail_with_errno(path_, "cannot be brought to the disk");
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail_with_errno(path_, "cannot be closed");
}

void sync_folder(const std::string& folder) {
  File(folder, O_RDONLY | O_DIRECTORY).finish();
}

std::vector<std::string> names_in(const std::string& folder, std::error_code& trouble) {
  trouble.clear();
  std::vector<std::string> names;
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(file < 0 ? nullptr : ::fdopendir(file), ::closedir);
  if (stream == nullptr) {
    trouble = {errno, std::generic_category()};
    if (file >= 0) ::close(file);
    return names;
  }
  for (;;) {
    errno = 0;
    const auto* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  trouble = {errno, std::generic_category()};
  return names;
}

void remove_all(const std::string& path, std::error_code& trouble) {
  constexpr int most_open = 16;
  const auto remove = [](const char* name, const struct stat*, int, FTW*) {
    return std::remove(name) == 0 || errno == ENOENT ? 0 : -1;
  };
  trouble.clear();
  if (::nftw(path.c_str(), remove, most_open, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return;
  trouble = {errno, std::generic_category()};
}

}  // namespace vernier
