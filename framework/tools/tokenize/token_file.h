// A file of tokens as token_dataset() reads it: no header, little-endian, 2 bytes a token where the vocabulary allows
// it, else 4.
#pragma once

#include <vernier/tokenizer.h>

#include <vernier/whole_file.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace vernier {

class TokenFile {
 public:
  // Writes to a file beside it until finish(); removes it otherwise.
  TokenFile(const std::string& path, std::int64_t vocabulary);

  void write(const std::vector<TokenId>& ids);
  void finish();
  std::int64_t count() const { return count_; }
  const char* type() const { return is_short_ ? "uint16" : "uint32"; }

 private:
  WholeFile whole_;
  bool is_short_;
  std::ofstream file_;
  std::vector<char> bytes_;
  std::int64_t count_ = 0;
};

}  // namespace vernier
