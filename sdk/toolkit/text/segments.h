// How the text between added tokens becomes ids, and ids become text.
#pragma once

#include <memory>

#include "tokenizer_file.h"

namespace vernier {

// The beginning of a segment.
enum class Place : std::uint8_t {
  beginning,    // of the whole text
  after_token,  // or behind one
  continued     // in the middle of a segment, since the text came in parts
};

// Memory of one call of encode().
struct Scratch {
  Joiner joiner;
  PieceCache cache;
  std::vector<TokenId> word;
  std::string text;
};

// Any thread may call the functions, with a Scratch of its own.
class Segments {
 public:
  virtual ~Segments() = default;
  // The text in which those added tokens are sought that are normalized.
  virtual std::string normalized(std::string_view segment, Place place) const = 0;
  // Adds the ids of a normalized segment, which is not empty.
  virtual void encode(std::string_view segment, Place place, Scratch& scratch, std::vector<TokenId>& ids) const = 0;
  // True if a text may be cut between two characters: the ids of both parts are those of the whole, if the second is
  // encoded with Place::continued.
  virtual bool can_cut(char32_t before, char32_t behind) const = 0;
  virtual std::string decode(std::span<const TokenId> ids) const = 0;
};

// `vocabulary`: one more than the largest id.
std::unique_ptr<const Segments> byte_level_segments(const TokenizerFile& file, std::size_t vocabulary);
std::unique_ptr<const Segments> character_segments(const TokenizerFile& file, std::size_t vocabulary);

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
