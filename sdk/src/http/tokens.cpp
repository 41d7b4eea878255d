#include "tokens.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <cerrno>
#include <cstring>
#include <sstream>

namespace vernier {

namespace {

constexpr std::size_t shortest = 32, longest_file = 64 * 1024;

std::array<long long, 4> mark_of(const struct stat& status) {
  return {static_cast<long long>(status.st_ino), static_cast<long long>(status.st_size),
          static_cast<long long>(status.st_mtim.tv_sec), static_cast<long long>(status.st_mtim.tv_nsec)};
}

// 32 random bytes in hexadecimal digits.
std::string random_token() {
  std::array<unsigned char, 32> bytes{};
  if (::RAND_bytes(bytes.data(), bytes.size()) != 1) throw Error("there are no random numbers for a token");
  std::string text;
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
  }
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
  throw Error(file.string() + ": " + what);
}

}  // namespace

const char* name_of(Scope scope) {
  return scope == Scope::open ? "open" : scope == Scope::read ? "read" : "control";
}

Tokens::Tokens(std::filesystem::path file) : file_(std::move(file)) {
  std::error_code none;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file_, none))) make();
  read();
}

void Tokens::make() const {
  const OpenFile out(::open(file_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  const auto text = "# Tokens of the control service: who has one may read this run, or steer it.\nread " +
                    random_token() + "\ncontrol " + random_token() + "\n";
  if (out.number >= 0 && ::write(out.number, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return;
  fail(file_, std::string("no tokens can be written: ") + std::strerror(errno));
}

void Tokens::read() {
  const OpenFile in(::open(file_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (in.number < 0) fail(file_, std::string("its tokens cannot be read: ") + std::strerror(errno));
  struct stat status {};
  ::fstat(in.number, &status);
  if (!S_ISREG(status.st_mode)) fail(file_, "is no file");
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
    const auto space = line.find(' ');
    const auto scope = line.substr(0, space), token = space == line.npos ? "" : line.substr(space + 1);
    if ((scope != "read" && scope != "control") || token.size() < shortest || token.find(' ') != token.npos) {
      fail(file_, "line " + std::to_string(number) + " must be `read` or `control` and a token of 32 letters or more");
    }
    tokens.push_back({digest_of(token), scope == "read" ? Scope::read : Scope::control});
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
  } catch (const Error& error) {
    log(Level::warning, "http", std::string(error.what()) + "; until then no token is good");
  }
}

Tokens::Digest Tokens::digest_of(std::string_view token) {
  Digest digest{};
  unsigned int size = digest.size();
  if (::EVP_Digest(token.data(), token.size(), digest.data(), &size, ::EVP_sha256(), nullptr) != 1) {
    throw Error("SHA-256 is not available");
  }
  return digest;
}

// Digests have the same length for every token, and all of them are compared, so the time tells nothing.
Scope Tokens::scope_of(std::string_view token) {
  read_if_changed();
  const auto digest = digest_of(token);
  Scope scope = Scope::open;
  for (const auto& known : tokens_) {
    const bool is_same = ::CRYPTO_memcmp(digest.data(), known.digest.data(), digest.size()) == 0;
    if (is_same && known.scope > scope) scope = known.scope;
  }
  return scope;
}

}  // namespace vernier
