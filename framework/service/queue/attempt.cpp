#include "service/queue/attempt.h"

#include <vernier/json_text.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

}  // namespace

void write_durably(const fs::path& file, const std::string& text) {
  const fs::path temporary = file.string() + ".partial";
  const int out = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written =
      out >= 0 && ::write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(out) == 0;
  int trouble = errno;
  if (out >= 0) ::close(out);
  if (is_written && ::rename(temporary.c_str(), file.c_str()) == 0) return sync_folder(file.parent_path());
  if (is_written) trouble = errno;
  throw std::runtime_error(file.string() + ": cannot be written: " + std::strerror(trouble));
}

std::string read_whole(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string last_line(std::istream& text) {
  std::string last;
  for (std::string line; std::getline(text, line);) {
    if (line.find_first_not_of(" \t\r") != line.npos) last = line;
  }
  std::erase_if(last, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; });
  return last.substr(0, 1000);
}

bool Attempt::make_claim(const char* who) const {
  // Its text is whole as soon as it has its name.
  const fs::path temporary = file("claim").string() + "." + who;
  write_durably(temporary, who);
  const bool is_made = ::link(temporary.c_str(), file("claim").c_str()) == 0;
  const int trouble = errno;
  ::unlink(temporary.c_str());
  if (is_made) sync_folder(folder_);
  if (!is_made && trouble != EEXIST) {
    throw std::runtime_error(file("claim").string() + ": cannot be made: " + std::strerror(trouble));
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
  const auto end = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!end.is_object()) return std::nullopt;
  return End{end.value("status", 1), end.value("reason", ""), end.value("text", "")};
}

}  // namespace serve
