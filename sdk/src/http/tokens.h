// The bearer tokens of a service: a file that only its owner reads.
#pragma once

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

// What a request may do. Each scope includes those before it; `open` needs no token.
enum class Scope { open, read, control };
const char* name_of(Scope scope);

// The file has a line for each token: its scope and the token, "control 3q2-…". A line that begins with # is a comment.
// One thread.
class Tokens {
 public:
  // Makes the file with a token for each scope where there is none. Throws Error where it cannot be made or read, where
  // others than the owner may read or write it, and where a line is wrong.
  explicit Tokens(std::filesystem::path file);

  // The scope of a token; Scope::open for one that is not in the file. Takes as long for every token. A file that was
  // changed is read again within a second; while it cannot be, no token is good.
  Scope scope_of(std::string_view token);
  const std::filesystem::path& file() const { return file_; }

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256
  struct Token {
    Digest digest;
    Scope scope;
  };
  static Digest digest_of(std::string_view token);
  void make() const;
  void read();
  void read_if_changed();

  std::filesystem::path file_;
  std::vector<Token> tokens_;
  std::chrono::steady_clock::time_point looked_;
  std::array<long long, 4> seen_{};  // inode, size, and time of the last change of the file that was read
};

}  // namespace vernier
