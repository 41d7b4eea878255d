#include "codec.h"

#include <vernier/error.h>

#include <charconv>
#include <sstream>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

std::vector<TokenId> numbers_in(const std::string& text) {
  std::vector<TokenId> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    TokenId number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) {
      refuse("the model has no tokenizer, so a prompt is the numbers of tokens, and '" + word +
             "' is none; name a tokenizer's folder with --tokenizer");
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

Codec::Codec(const LanguageModel& model, const std::string& folder) : is_bytes_(folder.empty() && model.reads_bytes()) {
  const auto own = folder.empty() && !is_bytes_ ? model.tokenizer_folder() : folder;
  if (!own.empty()) tokenizer_ = open_tokenizer(own);
}

std::vector<TokenId> Codec::encode(const std::string& text, bool special) const {
  if (tokenizer_ != nullptr) return tokenizer_->encode(text, special);
  if (!is_bytes_) return numbers_in(text);
  std::vector<TokenId> bytes;
  for (const unsigned char byte : text) bytes.push_back(byte);
  return bytes;
}

std::string Codec::decode(std::span<const TokenId> tokens) const {
  if (tokenizer_ != nullptr) return tokenizer_->decode(tokens);
  std::string text;
  for (const auto token : tokens) text += is_bytes_ ? std::string(1, static_cast<char>(token)) : c10::str(token, ' ');
  return text;
}

std::string Codec::word(TokenId token) const {
  if (tokenizer_ == nullptr) return decode({{token}});
  const auto all = tokenizer_->bytes(token);
  return all ? with_replacements(*all) : tokenizer_->decode({{token}}, /*keep_special=*/true);
}

std::optional<std::string> Codec::bytes(TokenId token) const {
  return tokenizer_ != nullptr ? tokenizer_->bytes(token) : std::optional(decode({{token}}));
}

std::optional<TokenId> Codec::end_of_text() const {
  return tokenizer_ == nullptr ? std::nullopt : tokenizer_->end_of_text();
}

std::optional<TokenId> Codec::id(const std::string& word) const {
  return tokenizer_ == nullptr ? std::nullopt : tokenizer_->id(word);
}

std::optional<TokenId> Codec::special(const std::string& word) const {
  if (tokenizer_ == nullptr) return std::nullopt;
  const auto token = tokenizer_->id(word);
  return token && tokenizer_->decode({{*token}}).empty() ? token : std::nullopt;
}

}  // namespace vernier
