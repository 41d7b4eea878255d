// The bearer tokens of a service: a file that only its owner reads.
#pragma once

#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

// The rights of a request. Each scope includes those before it; `open` needs no token.
enum class Scope { open, read, control, admin };
const char* name_of(Scope scope);

// The file has a line for each token: its scope, the token, and then, if known, whose it is and when it expires, as
// "control 3q2-… alice 2026-12-31T00:00:00Z". A line that begins with # is a comment. One thread.
class Tokens {
 public:
  // The owner of a token. scope is Scope::open if the token is not in the file or has expired.
  struct Holder {
    Scope scope = Scope::open;
    std::string name = {};  // the name in the file, or else the scope's
    bool has_expired = false;
  };
  // Makes the file with a token for each scope up to `highest` if it does not exist. Throws HttpError if it cannot be
  // made or read, if others than the owner may read or write it, and if a line is wrong.
  // warn: gets a sentence when a changed file cannot be read.
  Tokens(std::filesystem::path file, Scope highest, std::function<void(const std::string&)> warn);

  // Removes the tokens that a killed process has made. Another program may listen on its port now, and a client would
  // send such a token to that program. Tokens with a name belong to a person, and stay.
  static void forget(const std::filesystem::path& file);
  static bool is_name(std::string_view text);

  // Takes as long for every token. A file that was changed is read again within a second; while it cannot be, no token
  // is good.
  Holder holder_of(std::string_view token);
  const std::filesystem::path& file() const { return file_; }

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256
  struct Token {
    Digest digest;
    Scope scope;
    std::string name;
    std::time_t expires;  // 0: never
  };
  static Digest digest_of(std::string_view token);
  void make(Scope highest) const;
  void read();
  void read_if_changed();
  Token token_of(const std::string& line, int number) const;

  std::filesystem::path file_;
  std::function<void(const std::string&)> warn_;
  std::vector<Token> tokens_;
  std::chrono::steady_clock::time_point looked_;
  std::array<long long, 4> seen_{};  // inode, size, and time of the last change of the file that was read
};

}  // namespace vernier
