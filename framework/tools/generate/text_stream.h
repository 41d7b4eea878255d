// The text of tokens as they come: what can be printed at once, and where a stop word ends it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codec.h"

namespace vernier {

class TextStream {
 public:
  // print: called with each piece of the text behind the prompt, in order. Stop words are not printed.
  TextStream(const Codec& codec, std::vector<TokenId> prompt, std::vector<std::string> stops,
             std::function<void(const std::string&)> print);

  // Returns false if the text ends here, with a stop word.
  bool add(TokenId token);
  bool add_all(std::span<const TokenId> tokens);
  // Prints what was held back: half a character, or the beginning of a stop word.
  void finish();

  const std::string& text() const { return text_; }  // behind the prompt, without a stop word
  std::int64_t tokens() const { return count_; }     // behind the prompt
  // The place in the text, in characters, where a token that add() got begins. All parts of a character begin with it.
  std::size_t offset(std::size_t token) const;

 private:
  std::string decoded();
  std::size_t safe_length() const;
  void print_up_to(std::size_t length);

  const Codec& codec_;
  std::vector<TokenId> tokens_;
  std::vector<std::string> stops_;
  std::function<void(const std::string&)> print_;
  struct Begin {
    std::size_t bytes, characters;  // whole characters before a token
    std::size_t replaced;           // U+FFFD behind these: parts of a character that may become whole, or stay
    bool goes_on;                   // the token is a part of the same character
  };
  std::vector<Begin> begins_;
  std::string before_, text_, shown_;  // shown_: the text with stop words, and U+FFFD for what is not UTF-8
  std::string settled_, whole_;        // text that stays what it is, and the whole characters behind it
  std::size_t settled_bytes_ = 0;      // bytes that were decoded for settled_
  std::size_t printed_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace vernier
