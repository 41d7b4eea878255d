#include "audit.h"

#include <vernier/json_in.h>

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/algorithm/hex.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "service/http/http_service.h"

namespace serve {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

const std::string no_hash(64, '0');
constexpr const char* before_hash = ",\"hash\":\"";

std::string sha256(const std::string& text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hexadecimal;
  boost::algorithm::hex_lower(digest, std::back_inserter(hexadecimal));
  return hexadecimal;
}

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw std::runtime_error(file.string() + ": " + what);
}

// Why a line does not follow one with this hash; "" if it does. Sets the hash to that of the line.
std::string trouble_with(const std::string& line, std::int64_t number, std::string& hash) {
  const auto at = line.rfind(before_hash);
  const auto json = vernier::json_in<Json>(line);
  if (at == line.npos || !json.is_object() || !json.contains("seq") || !json.contains("prev")) {
    return "is not a line of an audit log";
  }
  const auto computed = sha256(line.substr(0, at));
  if (line != line.substr(0, at) + before_hash + computed + "\"}") return "was changed: its hash is another one";
  if (json["seq"] != number)
    return "has the number " + vernier::json_text(json["seq"]) + ": lines were removed or added before it";
  if (json["prev"] != hash) return "does not follow the line before it";
  hash = computed;
  return "";
}

}  // namespace

AuditLog::AuditLog(fs::path file) : file_(std::move(file)), last_hash_(no_hash) {
  descriptor_ = ::open(file_.c_str(), O_CREAT | O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (descriptor_ < 0) fail(file_, std::string("cannot be written: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(file_, "is not a file; move it away");
  }
  std::ifstream in(file_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto whole = text.rfind('\n') + 1;  // 0 if there is none
  if (whole > 0) {
    const auto from = whole > 1 ? text.rfind('\n', whole - 2) + 1 : 0;
    const auto last = vernier::json_in<Json>(text.substr(from, whole - from));
    const auto hash = last.is_object() && last.contains("hash") ? last["hash"] : Json();
    if (!hash.is_string() || !last.contains("seq") || !last["seq"].is_number_integer()) {
      ::close(descriptor_);
      fail(file_, "its last line is none of an audit log; move the file away");
    }
    next_ = last["seq"].get<std::int64_t>() + 1;
    last_hash_ = hash.get<std::string>();
  }
  if (whole == text.size()) return;
  if (::ftruncate(descriptor_, static_cast<off_t>(whole)) != 0) {
    const std::string why = std::strerror(errno);
    ::close(descriptor_);
    fail(file_, "half a line cannot be cut off: " + why);
  }
  add("server", "recovered", {{"bytes_cut", text.size() - whole}});
}

AuditLog::~AuditLog() {
  ::close(descriptor_);
}

void AuditLog::add(const std::string& who, const std::string& action, const Json& details) {
  const std::lock_guard lock(mutex_);
  Json line = {{"seq", next_}, {"time", vernier::time_text()}, {"who", who}, {"action", action}};
  for (const auto& [key, value] : details.items()) line[key] = value;
  line["prev"] = last_hash_;
  auto text = vernier::json_text(line, -1, /*ascii=*/true);
  text.pop_back();  // }
  const auto hash = sha256(text);
  text += before_hash + hash + "\"}\n";
  errno = 0;
  const auto written = ::write(descriptor_, text.data(), text.size());
  if (written >= 0 && written < std::ssize(text)) errno = ENOSPC;  // it was cut short
  if (written == static_cast<ssize_t>(text.size()) && ::fdatasync(descriptor_) == 0) {
    next_ += 1;
    last_hash_ = hash;
    return;
  }
  const std::string why = std::strerror(errno);
  const auto end = ::lseek(descriptor_, 0, SEEK_END);
  if (written > 0 && ::ftruncate(descriptor_, end - written) != 0) fail(file_, "is damaged: " + why);
  fail(file_, "cannot be written, so nothing is done: " + why);
}

AuditResult verify_audit(const fs::path& file) {
  std::ifstream in;
  if (fs::is_regular_file(file)) in.open(file, std::ios::binary);  // a pipe would wait for its writer
  if (!in.is_open()) fail(file, "cannot be read: name the audit log of a server");
  AuditResult result;
  result.head = no_hash;
  for (std::string line; std::getline(in, line);) {
    const auto number = result.lines + 1;
    result.trouble = in.eof() ? "has no end" : trouble_with(line, number, result.head);
    if (!result.trouble.empty()) {
      result.trouble = "line " + std::to_string(number) + " " + result.trouble;
      break;
    }
    result.lines = number;
  }
  if (result.lines == 0 && result.trouble.empty()) result.trouble = "has no line of an audit log";
  return result;
}

}  // namespace serve
