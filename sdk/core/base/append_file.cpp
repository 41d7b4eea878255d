#include <vernier/append_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <system_error>
#include <utility>

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_waiting = 1 << 20;
constexpr std::size_t often = 1 << 14;                // bytes; as many are written at once where the disk takes them
constexpr std::int64_t longest_wait = 1'000'000'000;  // nanoseconds

std::string reason(int number) {
  return std::generic_category().message(number);
}

std::int64_t nanoseconds_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

AppendFile::AppendFile(fs::path path, std::string units, Warn warn)
    : path_(std::move(path)), units_(std::move(units)), warn_(std::move(warn)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), path_.string() + ": cannot be opened");
}

AppendFile::~AppendFile() {
  ::close(descriptor_);
}

bool AppendFile::append(std::string_view unit) {
  if (waiting_.size() >= most_waiting) flush();
  if (waiting_.size() >= most_waiting) {
    lost_ += 1;
    return false;
  }
  waiting_ += unit;
  sizes_.push_back(unit.size());
  const bool is_much = waiting_.size() >= often && !is_failing_;
  if (is_much || nanoseconds_now() - flushed_ >= longest_wait) flush();
  return true;
}

void AppendFile::flush() {
  if (waiting_.empty() && !is_failing_) return;  // or the first unit after it would wait, perhaps through a long pause
  flushed_ = nanoseconds_now();
  std::size_t done = 0;
  int trouble = 0;
  while (done < waiting_.size() && trouble == 0) {
    const auto written = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      trouble = written == 0 ? EIO : errno;
    }
  }
  done = cut_half_a_unit(done);
  waiting_.erase(0, done);
  warn_of(trouble);
}

// done: bytes that were written. Returns how many of them stay, and forgets the units that are whole.
std::size_t AppendFile::cut_half_a_unit(std::size_t done) {
  std::size_t whole = 0;
  while (!sizes_.empty() && whole + sizes_.front() <= done) {
    whole += sizes_.front();
    sizes_.pop_front();
  }
  if (whole == done) return done;
  const auto size = ::lseek(descriptor_, 0, SEEK_END);
  if (size >= 0 && ::ftruncate(descriptor_, size - static_cast<off_t>(done - whole)) == 0) return whole;
  sizes_.front() -= done - whole;  // a pipe cannot be cut; the other half waits
  return done;
}

void AppendFile::warn_of(int trouble) {
  if (trouble != 0 && !is_failing_) {
    warn_(path_.string() + ": cannot be written: " + reason(trouble) + "; " + units_ +
          " wait in memory until it can be, and those beyond 1 MB are lost");
  }
  if (trouble == 0 && is_failing_) {
    warn_(path_.string() + ": can be written again; " + units_ +
          " that are missing: " + std::to_string(std::exchange(lost_, 0)));
  }
  is_failing_ = trouble != 0;
}

void AppendFile::warn_of_missing() const {
  if (missing() > 0)
    warn_(path_.string() + ": " + units_ + " that are missing at its end: " + std::to_string(missing()));
}

bool is_full(const std::error_code& trouble) {
  const int number = trouble.value();
  return number == ENOSPC || number == EDQUOT || number == EFBIG;
}

std::int64_t keep_lines(const fs::path& path, const std::function<bool(std::string_view, std::int64_t)>& keep) {
  if (!fs::is_regular_file(path)) return 0;  // /dev/stdout
  std::uintmax_t whole = 0;
  std::ifstream in(path, std::ios::binary);
  std::int64_t count = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); ++count, whole += line.size() + 1) {
    if (line.find('\0') != line.npos || !keep(line, count)) break;
  }
  in.close();
  if (whole != fs::file_size(path)) fs::resize_file(path, whole);
  return count;
}

std::int64_t keep_lines_of_run(const fs::path& path, std::int64_t last_step, std::int64_t lines) {
  return keep_lines(path, [&](std::string_view line, std::int64_t number) {
    constexpr std::string_view head = "{\"step\":";
    std::int64_t step = -1;
    if (line.starts_with(head)) std::from_chars(line.data() + head.size(), line.data() + line.size(), step);
    return step >= 0 && line.ends_with('}') && (lines >= 0 ? number < lines : step <= last_step);
  });
}

}  // namespace vernier
