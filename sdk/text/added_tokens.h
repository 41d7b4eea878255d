// Tokens that are cut out of a text before all else, such as "<|endoftext|>".
#pragma once

#include <vernier/text/tokenizer.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool is_special = false;
  bool strips_left = false, strips_right = false;  // swallows the white characters beside it
  bool is_normalized = false;                      // sought in the normalized text
  bool is_as_it_is = false;                        // the token stands unchanged in normalized text
  bool is_word = false;                            // only where no character of a word stands beside it
  bool is_in_text = true;                          // false: no text has it, only programs put its id
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // A part of the text: the token that it is, or ordinary text.
  struct Part {
    std::string_view text;
    const AddedToken* token;  // null: ordinary text, never empty
  };
  // The parts of a text: at each place the longest token, the leftmost first. skip_special: special tokens are found
  // but stay ordinary text.
  std::vector<Part> cut(std::string_view text, bool skip_special) const;

  // True if a cut of the text at this byte would change a token of it, one that may go on behind its end, or the text
  // that begins behind one.
  bool reaches_over(std::string_view text, std::size_t at) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::array<std::vector<std::size_t>, 256> by_first_byte_;  // places in tokens_, the longest first
};

}  // namespace vernier
