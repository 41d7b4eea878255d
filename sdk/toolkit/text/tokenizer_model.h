// The parts of a tokenizer's folder, each read into a TokenizerFile.
#pragma once

#include "tokenizer_file.h"
#include "tokenizer_json.h"

namespace vernier {

void read_vocabulary(const JsonPart& vocab, TokenizerFile& file);

// Refuses a vocabulary of byte-level BPE that lacks the token of a byte.
void require_bytes(const JsonPart& vocab, const TokenizerFile& file);

// Adds the merge of two tokens that are in the vocabulary, as their result is. `where` names its place in errors.
void add_merge(TokenizerFile& file, const std::string& where, const std::string& left, const std::string& right);
// Returns false unless the text is two tokens with a space between them.
bool add_merge(TokenizerFile& file, const std::string& where, std::string_view text);

// `model` of tokenizer.json.
void read_model(const JsonPart& model, TokenizerFile& file);

// `normalizer`, `pre_tokenizer` and `decoder`, which must fit each other.
void read_style(const JsonPart& root, TokenizerFile& file);

TokenId token_id(const JsonPart& number);
// A token as `added_tokens` of tokenizer.json and `added_tokens_decoder` of tokenizer_config.json have it.
AddedToken added_token(const JsonPart& token, TokenId id);

// Adds tokens to those of a file.
class TokenAdder {
 public:
  explicit TokenAdder(TokenizerFile& file);
  // Returns false if the token is there already. Refuses another id of the same token, and an id of another one.
  bool add(const JsonPart& place, AddedToken token);
  std::optional<TokenId> id_of(const std::string& text) const;
  bool is_added(const std::string& text) const { return added_.contains(text); }

 private:
  TokenizerFile& file_;
  std::unordered_map<TokenId, std::string> of_id_;
  std::unordered_map<std::string, TokenId> added_;
};

// `added_tokens` and `post_processor`.
void read_added_tokens(const JsonPart& tokens, TokenizerFile& file);
void read_post_processor(const JsonPart& post_processor, TokenizerFile& file);

}  // namespace vernier
