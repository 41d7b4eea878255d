// How a piece of a text becomes ids: `model` of tokenizer.json.
#pragma once

#include <memory>

#include "text/bpe/bpe.h"
#include "text/files/tokenizer_file.h"
#include "text/pre_tokenizer.h"

namespace vernier {

// Memory of one call of encode().
struct Scratch {
  Joiner joiner;
  PieceCache cache;
  std::vector<TokenId> word;
  PieceBuffer pieces;
};

// Any thread may call the functions, with a Scratch of its own.
class Model {
 public:
  virtual ~Model() = default;
  // Adds the ids of a piece, which is not empty.
  virtual void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const = 0;
  // True if the ids of a piece are those of its two parts, wherever these two characters stand side by side.
  virtual bool is_apart(char32_t, char32_t) const { return false; }
};

std::unique_ptr<const Model> byte_bpe(const TokenizerFile& file);       // on bytes, as GPT-2 has it
std::unique_ptr<const Model> character_bpe(const TokenizerFile& file);  // on characters, as Llama 2 has it
std::unique_ptr<const Model> word_piece(const TokenizerFile& file);     // and WordLevel
std::unique_ptr<const Model> unigram(const TokenizerFile& file);

// The bytes that the characters of a token stand for; the token itself if one stands for none.
std::string bytes_of_token(std::string_view token);

// Adds the ids of a piece: from the cache, or those that `make` writes into scratch.word.
template <class Make>
void add_piece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids, const Make& make) {
  auto* entry = scratch.cache.entry(piece);
  if (entry != nullptr && entry->has(piece)) {
    ids.insert(ids.end(), entry->ids.begin(), entry->ids.begin() + entry->count);
    return;
  }
  scratch.word.clear();
  make();
  ids.insert(ids.end(), scratch.word.begin(), scratch.word.end());
  if (entry != nullptr) entry->keep(piece, scratch.word);
}

}  // namespace vernier
