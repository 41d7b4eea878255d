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

// `added_tokens` and `post_processor`.
void read_added_tokens(const JsonPart& tokens, TokenizerFile& file);
void read_post_processor(const JsonPart& post_processor, TokenizerFile& file);

}  // namespace vernier
