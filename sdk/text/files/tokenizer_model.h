// The parts of a tokenizer's folder, each read into a TokenizerFile.
#pragma once

#include "tokenizer_file.h"
#include "tokenizer_json.h"

namespace vernier {

void read_vocabulary(const JsonPart& vocab, TokenizerFile& file);

// Refuses a vocabulary of byte-level BPE that lacks the token of a byte.
void require_bytes(const JsonPart& vocab, const TokenizerFile& file);
// Refuses a model that does not say what becomes of each character.
void require_all_characters(const JsonPart& root, const TokenizerFile& file);

// Adds the merge of two tokens that are in the vocabulary, as their result is. `where` names its place in errors.
void add_merge(TokenizerFile& file, const std::string& where, const std::string& left, const std::string& right);
// Returns false unless the text is two tokens with a space between them.
bool add_merge(TokenizerFile& file, const std::string& where, std::string_view text);

// Adds the merges of tokens that have a rank each: two tokens are joined if what they give is a token.
void add_merges_by_rank(TokenizerFile& file, const std::unordered_map<std::string, std::uint32_t>& ranks);

// `model`, `normalizer`, `pre_tokenizer` and `decoder` of tokenizer.json.
void read_model(const JsonPart& model, TokenizerFile& file);
void read_normalizer(const JsonPart& normalizer, TokenizerFile& file);
void read_pieces(const JsonPart& pre_tokenizer, TokenizerFile& file);  // behind the normalizer
void read_decoder(const JsonPart& decoder, TokenizerFile& file);

// The members of a Sequence, and of those in it; a part that is none is alone; null has none.
std::vector<JsonPart> parts_of_sequence(const JsonPart& part, const char* name);
[[noreturn]] void refuse_type(const JsonPart& part, const std::string& known);
void require_text(const JsonPart& part, std::string_view wanted);
// `prepend_scheme` of a Metaspace: always, first or never.
std::string metaspace_scheme(const JsonPart& part);
struct Pattern {
  std::string text;
  std::shared_ptr<const Regex> regex;  // null: the text itself is sought
};
Pattern read_pattern(const JsonPart& pattern);
std::shared_ptr<const Regex> compiled(const JsonPart& place, const std::string& expression);

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
