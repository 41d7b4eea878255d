#include <vernier/data_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/missing_file.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace vernier {

namespace {

// The kind of thing that a path leads to; "" for a regular file, which alone is read.
std::string other_kind(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

void require_regular(const DataFile& file, mode_t mode) {
  const auto kind = other_kind(mode);
  if (!kind.empty()) file.refuse("cannot be read: it is " + kind + "; name a regular file");
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path) {
  const auto refuse_with_errno = [this] {
    const auto trouble = errno;
    const bool is_there = trouble != ENOENT && trouble != ENOTDIR;
    refuse("cannot be opened: " + std::generic_category().message(trouble) +
           (is_there ? "" : missing_file_hint(path_)));
  };
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) refuse_with_errno();
  require_regular(*this, status.st_mode);
  do {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // it may have become a pipe by now
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) refuse_with_errno();
  try {
    if (::fstat(descriptor_, &status) != 0) refuse_with_errno();
    require_regular(*this, status.st_mode);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

DataFile::~DataFile() {
  ::close(descriptor_);
}

std::size_t DataFile::read(void* to, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t now = ::read(descriptor_, static_cast<char*>(to) + done, count - done);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) refuse("cannot be read: " + std::generic_category().message(errno));
    if (now == 0) break;
    done += static_cast<std::size_t>(now);
  }
  return done;
}

void DataFile::refuse(const std::string& reason) const {
  vernier::refuse("'" + path_ + "' " + reason);
}

std::string read_data_file(const std::string& path, std::uint64_t most) {
  DataFile file(path);
  const auto refuse_size = [&](const std::string& size) {
    file.refuse("has " + size + " bytes; at most " + std::to_string(most) + " are read");
  };
  if (file.size() > most) refuse_size(std::to_string(file.size()));
  std::string text(file.size() + 1, '\0');  // one byte more, which shows that the file has more
  std::size_t length = file.read(text.data(), text.size());
  while (length == text.size() && length <= most) {
    text.resize(std::min<std::uint64_t>(2 * text.size(), most + 1));
    length += file.read(text.data() + length, text.size() - length);
  }
  if (length > most) refuse_size("more than " + std::to_string(most));
  text.resize(length);
  return text;
}

}  // namespace vernier
