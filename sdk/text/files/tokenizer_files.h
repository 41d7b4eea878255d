// Files of tokenizers other than tokenizer.json, translated into its parts.
#pragma once

#include <filesystem>
#include <string_view>

#include "tokenizer_file.h"

namespace vernier {

// tokenizer.model of SentencePiece. `file.path` names it.
void read_sentence_piece(std::string_view bytes, TokenizerFile& file);

// True if the bytes are lines of a token in base64 and its rank.
bool is_tiktoken(std::string_view bytes);
// Ranks of a vocabulary that is known, since the file lacks the expression that cuts a text and the special tokens.
void read_tiktoken(std::string_view bytes, TokenizerFile& file);

// tekken.json of Mistral, which has all of it.
void read_tekken(TokenizerFile& file);

// vocab.txt of BERT, with the options of tokenizer_config.json beside it.
void read_vocab_txt(const std::filesystem::path& folder, TokenizerFile& file);

}  // namespace vernier
