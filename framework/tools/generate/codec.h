// Between texts and the tokens of a model.
#pragma once

#include <vernier/text/generation.h>
#include <vernier/text/tokenizer.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vernier {

// A tokenizer; or bytes; or, if there is neither, the numbers of the tokens with spaces between them.
class Codec {
 public:
  // folder: a tokenizer's, or "" for what the model says of itself.
  Codec(const LanguageModel& model, const std::string& folder);

  // special: as for Tokenizer::encode().
  std::vector<TokenId> encode(const std::string& text, bool special = true) const;
  // Whole characters only, but for bytes: what is not UTF-8 becomes U+FFFD.
  std::string decode(std::span<const TokenId> tokens) const;
  std::string word(TokenId token) const;  // the text of one token, special ones too
  // Its bytes, those of a part of a character too; nothing where the tokenizer knows none.
  std::optional<std::string> bytes(TokenId token) const;
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  std::optional<TokenId> end_of_text() const;
  std::optional<TokenId> id(const std::string& word) const;  // the id of a token's text
  // The special token that a stop word is, which has no text.
  std::optional<TokenId> special(const std::string& word) const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool is_bytes_;
};

}  // namespace vernier
