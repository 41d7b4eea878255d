#include "service/queue/attempt.h"

#include <vernier/json_in.h>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "common/text/control_characters.h"

namespace serve {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

void sync_folder(const fs::path& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

// A file of a folder in which a job can make links. No part of its path may be one.
class OpenFile {
 public:
  explicit OpenFile(const fs::path& file) {
    open_how how{.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC, .mode = 0, .resolve = RESOLVE_NO_SYMLINKS};
    descriptor_ = static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, file.c_str(), &how, sizeof how));
    const bool is_unknown = descriptor_ < 0 && (errno == ENOSYS || errno == EPERM);  // before Linux 5.6, or forbidden
    if (is_unknown) descriptor_ = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status {};
    if (descriptor_ >= 0 && ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) size_ = status.st_size;
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const { return descriptor_; }
  std::int64_t size() const { return size_; }  // 0 for what is not a file

 private:
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace

void write_durably(const fs::path& file, const std::string& text) {
  const fs::path temporary = file.string() + ".partial";
  const int out = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  int trouble = out < 0 ? errno : 0;
  for (std::size_t done = 0; trouble == 0 && done < text.size();) {
    const auto written = ::write(out, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) trouble = errno;
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  if (trouble == 0 && ::fsync(out) != 0) trouble = errno;
  if (out >= 0) ::close(out);
  if (trouble == 0 && ::rename(temporary.c_str(), file.c_str()) != 0) trouble = errno;
  if (trouble == 0) return sync_folder(file.parent_path());
  ::unlink(temporary.c_str());
  throw std::system_error(trouble, std::generic_category(), file.string() + ": cannot be written");
}

std::string read_part(const fs::path& file, std::int64_t from, std::size_t most) {
  const OpenFile in(file);
  const auto size = in.size();
  const auto begin = std::min(size, from < 0 ? size - std::min(size, -from) : from);
  std::string text(std::min(most, static_cast<std::size_t>(size - begin)), '\0');
  std::size_t done = 0;
  for (ssize_t count = 1; count > 0 && done < text.size();
       done += static_cast<std::size_t>(std::max<ssize_t>(count, 0))) {
    count = ::pread(in.descriptor(), text.data() + done, text.size() - done, begin + static_cast<off_t>(done));
  }
  text.resize(done);
  return text;
}

std::string read_whole(const fs::path& file, std::size_t most) {
  auto text = read_part(file, 0, most + 1);
  return text.size() > most ? "" : text;
}

std::string last_line(std::istream& text) {
  std::string last;
  for (std::string line; std::getline(text, line);) {
    if (line.find_first_not_of(" \t\r") != line.npos) last = line;
  }
  return vernier::without_control_characters(last).substr(0, 1000);
}

bool Attempt::make_claim(const char* who) const {
  // Its text is whole as soon as it has its name.
  const fs::path temporary = file("claim").string() + "." + who;
  write_durably(temporary, who);
  const bool is_made = ::link(temporary.c_str(), file("claim").c_str()) == 0;
  const int trouble = errno;
  ::unlink(temporary.c_str());
  if (is_made) sync_folder(files());
  if (!is_made && trouble != EEXIST) {
    throw std::system_error(trouble, std::generic_category(), file("claim").string() + ": cannot be made");
  }
  return is_made;
}

bool Attempt::begin() const {
  const int lock = ::open(file("lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);  // stays open
  if (lock < 0) throw std::runtime_error(file("lock").string() + ": cannot be made: " + std::strerror(errno));
  return ::flock(lock, LOCK_EX | LOCK_NB) == 0 && make_claim("process");
}

void Attempt::end(const End& end) const {
  const Json text = {{"status", end.status}, {"reason", end.reason}, {"text", end.text}};
  write_durably(file("done"), vernier::json_text(text) + "\n");
}

Attempt::Claim Attempt::claim() const {
  const auto who = read_whole(file("claim"));
  return who.empty() ? Claim::none : who == "server" ? Claim::server : Claim::process;
}

bool Attempt::claim_for_server() const {
  return make_claim("server");
}

bool Attempt::is_locked() const {
  const int lock = ::open(file("lock").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (lock < 0) return false;
  const bool is_held = ::flock(lock, LOCK_SH | LOCK_NB) != 0;
  ::close(lock);
  return is_held;
}

std::optional<End> Attempt::how_it_ended() const {
  const auto text = read_whole(file("done"));
  if (text.empty()) return std::nullopt;
  const auto end = vernier::json_in<Json>(text);
  if (!end.is_object()) return std::nullopt;
  return End{end.value("status", 1), end.value("reason", ""), end.value("text", "")};
}

}  // namespace serve
