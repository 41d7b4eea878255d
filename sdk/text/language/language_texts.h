// The texts of a file, and which of their tokens are learned.
#pragma once

#include <vernier/text/language_data.h>

#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "data/readers/mapped_file.h"
#include "language_forms.h"
#include "template_chats.h"

namespace vernier {

struct TokenizedPreference {
  TokenizedText chosen, rejected;
};

// Any thread may call the functions.
class LanguageTexts {
 public:
  LanguageTexts(const Tokenizer& tokenizer, const std::string& path, const LanguageDataOptions& options);
  std::size_t size() const { return texts_.size(); }
  TokenizedText tokenized(std::size_t i) const;
  TokenizedPreference preference(std::size_t i) const;
  // In the file, from 1; 0: the text is the whole file.
  std::size_t line(std::size_t i) const { return texts_[i].line; }
  // The unit that line() counts: "line", or "element" of an array.
  const char* unit() const { return is_array_ ? "element" : "line"; }

 private:
  struct Text {
    std::string_view bytes;
    std::size_t line;  // 0: the whole file
  };
  void read_lines(std::string_view bytes);
  void read_array(std::string_view bytes);
  std::string where(std::size_t line) const;
  Json parsed(std::size_t i) const;
  TokenizedText of_line(const LanguageLine& line, const std::string& where) const;
  TokenizedText of_text(const std::string& text, const std::string& where) const;
  TokenizedText of_prompt(const std::string& prompt, const std::string& completion, const std::string& where) const;
  TokenizedText of_messages(const std::vector<ChatMessage>& messages, const std::string& where) const;
  void add_message(const ChatMessage& message, TokenizedText& chat) const;
  std::vector<TokenId> encode(const std::string& text, const std::string& where, bool special) const;
  TokenId token(const char* name) const;

  const Tokenizer& tokenizer_;
  LanguageDataOptions options_;
  mutable std::optional<TemplateChats> template_;
  mutable std::mutex template_mutex_;
  MappedFilePtr file_;
  std::string unpacked_;  // text of a gzip file
  bool is_array_ = false;
  std::vector<Text> texts_;
};

}  // namespace vernier
