// How the text between added tokens becomes ids, and ids become text: normalizer, pre_tokenizer, model and decoder of a
// folder together.
#pragma once

#include "decoder.h"
#include "normalizer.h"
#include "pre_tokenizer.h"
#include "text/models/model.h"

namespace vernier {

// Any thread may call the functions, with a Scratch of its own.
class Segments {
 public:
  // `vocabulary`: one more than the largest id.
  Segments(const TokenizerFile& file, std::size_t vocabulary);
  // The text in which those added tokens are sought that are normalized.
  std::string normalized(std::string_view segment, Place place) const { return normalizer_.apply(segment, place); }
  // Adds the ids of a normalized segment, which is not empty.
  void encode(std::string_view segment, Place place, Scratch& scratch, std::vector<TokenId>& ids) const;
  // True if a text may be cut between two characters: the ids of both parts are those of the whole, if the second is
  // encoded with Place::continued.
  bool can_cut(char32_t before, char32_t behind) const;
  std::string decode(std::span<const TokenId> ids) const;
  std::optional<std::string> bytes(TokenId id) const;  // see Tokenizer

 private:
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<const Model> model_;
  std::vector<DecodeStep> decoder_;
  bool is_byte_decoded_;                           // the decoder is ByteLevel, and `texts_` are bytes
  std::vector<std::optional<std::string>> texts_;  // by id; none for an id that is not a token
};

}  // namespace vernier
