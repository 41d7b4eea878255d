// The texts of a file, and which of their tokens are learned.
#pragma once

#include <vernier/language_data.h>

#include <string_view>
#include <vector>

#include "files/json.h"
#include "readers/mapped_file.h"

namespace vernier {

struct TokenizedText {
  std::vector<TokenId> ids;
  std::vector<bool> is_learned;  // of each id, as a target
  bool is_chat = false;
  bool goes_on = false;  // in the next row if it is longer than one
};

// Any thread may call the functions.
class LanguageTexts {
 public:
  LanguageTexts(const Tokenizer& tokenizer, const std::string& path, const LanguageDataOptions& options);
  std::size_t size() const { return texts_.size(); }
  TokenizedText tokenized(std::size_t i) const;
  std::size_t line(std::size_t i) const {
    return texts_[i].line;
  }  // in the file, from 1; 0: the text is the whole file

 private:
  struct Text {
    std::string_view bytes;
    std::size_t line;  // 0: the whole file
  };
  TokenizedText of_text(const std::string& text, const std::string& where) const;
  TokenizedText of_line(const Json& line, const std::string& where) const;
  TokenizedText of_prompt(const std::string& prompt, const std::string& completion, const std::string& where) const;
  TokenizedText of_messages(const Json& messages, const std::string& where) const;
  void add_message(const std::string& role, std::string_view content, TokenizedText& chat) const;
  std::vector<TokenId> encode(const std::string& text, const std::string& where, bool special) const;
  TokenId token(const char* name) const;

  const Tokenizer& tokenizer_;
  LanguageDataOptions options_;
  MappedFilePtr file_;
  std::vector<Text> texts_;
};

}  // namespace vernier
