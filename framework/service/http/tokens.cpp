#include "tokens.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/algorithm/hex.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "http_message.h"

namespace vernier {

namespace {

constexpr std::size_t shortest = 32, longest_file = 64 * 1024;
constexpr const char* scope_names[] = {"open", "read", "control", "admin"};  // in the order of Scope
constexpr const char* name_letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-";

// The time of the last change of its status: chmod and chown change it, too.
std::array<long long, 4> mark_of(const struct stat& status) {
  return {static_cast<long long>(status.st_ino), static_cast<long long>(status.st_size),
          static_cast<long long>(status.st_ctim.tv_sec), static_cast<long long>(status.st_ctim.tv_nsec)};
}

// 32 random bytes in hexadecimal digits.
std::string random_token() {
  std::array<unsigned char, 32> bytes{};
  if (::RAND_bytes(bytes.data(), bytes.size()) != 1) throw HttpError("there are no random numbers for a token");
  std::string text;
  boost::algorithm::hex_lower(bytes, std::back_inserter(text));
  return text;
}

struct OpenFile {
  explicit OpenFile(int number) : number(number) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (number >= 0) ::close(number);
  }
  int number;
};

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw HttpError(file.string() + ": " + what);
}

constexpr std::string_view comment =
    "# Tokens of the service, each with its scope: `read` may look, `control` may also act.\n";

// Returns true for a file that was made here and has no end, as a full disk or a kill left it, and for an empty one.
bool is_half_written(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(longest_file, '\0');
  in.read(text.data(), std::ssize(text));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() < comment.size()) return comment.starts_with(text);
  if (!text.starts_with(comment)) return false;
  const auto last = text.substr(text.rfind('\n') + 1);
  return text.size() == comment.size() || (!last.empty() && last.size() < shortest);
}

}  // namespace

const char* name_of(Scope scope) {
  return scope_names[static_cast<std::size_t>(scope)];
}

Tokens::Tokens(std::filesystem::path file, Scope highest, std::function<void(const std::string&)> warn)
    : file_(std::move(file)), warn_(std::move(warn)) {
  std::error_code none;
  const auto there = std::filesystem::symlink_status(file_, none);
  if (std::filesystem::is_regular_file(there) && is_half_written(file_)) std::filesystem::remove(file_);
  if (!std::filesystem::exists(std::filesystem::symlink_status(file_, none))) make(highest);
  read();
}

void Tokens::forget(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line, scope, token, name;
  if (!std::getline(in, line) || line + "\n" != comment) return;
  while (std::getline(in, line)) {
    if (std::istringstream(line) >> scope >> token >> name) return;
  }
  std::error_code none;
  std::filesystem::remove(file, none);
}

bool Tokens::is_name(std::string_view text) {
  return text.size() <= 64 && text.find_first_not_of(name_letters) == text.npos;
}

// Under another name until it is whole: a server that is killed meanwhile makes it anew.
void Tokens::make(Scope highest) const {
  const auto partial = file_.string() + ".partial";
  ::unlink(partial.c_str());
  std::string text(comment);
  for (const Scope scope : {Scope::read, Scope::control, Scope::admin}) {
    if (scope <= highest) text += std::string(name_of(scope)) + " " + random_token() + "\n";
  }
  errno = 0;
  const OpenFile out(::open(partial.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool is_written = out.number >= 0 &&
                          ::write(out.number, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                          ::fsync(out.number) == 0;
  // A link does not replace a file that has come meanwhile.
  const bool is_there = is_written && (::link(partial.c_str(), file_.c_str()) == 0 || errno == EEXIST);
  const int trouble = errno == 0 ? ENOSPC : errno;  // a write that was cut short
  ::unlink(partial.c_str());
  if (!is_there) fail(file_, std::string("no tokens can be written: ") + std::strerror(trouble));
}

Tokens::Token Tokens::token_of(const std::string& line, int number) const {
  const auto wrong = [&](const std::string& what) { fail(file_, "line " + std::to_string(number) + " " + what); };
  std::istringstream words(line);
  std::string scope, token, name, expiry, more;
  words >> scope >> token >> name >> expiry >> more;
  const auto* found = std::ranges::find(scope_names, scope);
  if (found == std::end(scope_names) || scope == scope_names[0] || token.size() < shortest || !more.empty()) {
    wrong("must be `read`, `control` or `admin`, a token of 32 letters or more, and then a name and a time at most");
  }
  if (!is_name(name)) {
    wrong("has a name with other letters than a-z, A-Z, 0-9 and ._@-, or a name of more than 64");
  }
  std::tm time{};
  const char* end = expiry.empty() ? "" : ::strptime(expiry.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (end == nullptr || *end != '\0') wrong("has a time that is none such as 2026-12-31T00:00:00Z");
  return {.digest = digest_of(token),
          .scope = static_cast<Scope>(found - std::begin(scope_names)),
          .name = name.empty() ? scope : name,
          .expires = expiry.empty() ? 0 : ::timegm(&time)};
}

void Tokens::read() {
  const OpenFile in(::open(file_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (in.number < 0) fail(file_, std::string("its tokens cannot be read: ") + std::strerror(errno));
  struct stat status {};
  ::fstat(in.number, &status);
  if (!S_ISREG(status.st_mode)) fail(file_, "is not a file");
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    fail(file_, "others than its owner may use these tokens; call chmod 600 on your own file");
  }
  if (status.st_size > static_cast<off_t>(longest_file)) fail(file_, "is too large for tokens");
  std::string text(longest_file, '\0');
  const auto bytes = ::read(in.number, text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  std::vector<Token> tokens;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    number += 1;
    if (line.empty() || line.starts_with('#')) continue;
    tokens.push_back(token_of(line, number));
  }
  if (tokens.empty()) fail(file_, "has no tokens; remove it to have them made");
  ::OPENSSL_cleanse(text.data(), text.size());
  tokens_ = std::move(tokens);
  seen_ = mark_of(status);
}

void Tokens::read_if_changed() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < std::chrono::seconds(1)) return;
  looked_ = now;
  struct stat status {};
  const bool is_there = ::lstat(file_.c_str(), &status) == 0;
  if (is_there && mark_of(status) == seen_) return;
  try {
    tokens_.clear();
    seen_ = is_there ? mark_of(status) : decltype(seen_){};
    read();
  } catch (const HttpError& error) {
    warn_(std::string(error.what()) + "; until then no token is good");
  }
}

Tokens::Digest Tokens::digest_of(std::string_view token) {
  Digest digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

// Digests have the same length for every token, and all of them are compared, so the time reveals nothing.
Tokens::Holder Tokens::holder_of(std::string_view token) {
  read_if_changed();
  const auto digest = digest_of(token);
  const auto now = std::time(nullptr);
  const Token* found = nullptr;
  bool has_expired = false;
  for (const auto& known : tokens_) {
    const bool is_same = ::CRYPTO_memcmp(digest.data(), known.digest.data(), digest.size()) == 0;
    const bool is_over = known.expires != 0 && known.expires <= now;
    has_expired = has_expired || (is_same && is_over);
    if (is_same && !is_over && (found == nullptr || known.scope > found->scope)) found = &known;
  }
  if (found != nullptr) return {.scope = found->scope, .name = found->name};
  return {.has_expired = has_expired};
}

}  // namespace vernier
