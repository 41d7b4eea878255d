// The steps that change a text before it is cut: `normalizer` of tokenizer.json, and what SentencePiece does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "character_map.h"
#include "text/bpe/regex.h"
#include "trie.h"

namespace vernier {

// The beginning of a segment.
enum class Place : std::uint8_t {
  beginning,    // starts the whole text
  after_token,  // or behind one
  continued     // in the middle of a segment, since the text came in parts
};

struct NormalStep {
  enum class Kind : std::uint8_t {
    form_c,
    form_d,
    form_kc,
    form_kd,
    lower_case,
    strip,
    strip_marks,     // StripAccents
    nmt,             // control characters go, odd spaces become spaces
    clean,           // `clean_text` of BERT
    space_chinese,   // `handle_chinese_chars` of BERT: a space on both sides
    strip_accents,   // strip_accents of BERT, behind form D
    prepend,         // `to`, unless the text is empty
    replace,         // `from` or `regex` by `to`
    character_map,   // Precompiled
    sentence_piece,  // all that SentencePiece does
  };
  Kind kind;
  std::string from = {}, to = {};
  std::shared_ptr<const Regex> regex = {};
  bool at_begin = true, at_end = true;            // strip
  std::shared_ptr<const CharacterMap> map = {};   // character_map, and sentence_piece if it is there
  std::shared_ptr<const Trie> kept = {};          // sentence_piece: texts that stay as they are
  bool adds_space = true, removes_spaces = true;  // sentence_piece: one before the text; those that are too many
};

// Any thread may call the functions.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalStep> steps) : steps_(std::move(steps)) {}
  std::string apply(std::string_view segment, Place place) const;
  // True if a text may be cut between two characters: the two parts, the second one continued, become what the whole
  // does.
  bool can_cut(char32_t before, char32_t behind) const;
  // True if a space becomes U+2581.
  bool marks_spaces() const;

 private:
  std::vector<NormalStep> steps_;
};

// The text with each match by another text.
std::string with_replaced(std::string_view text, std::string_view from, std::string_view to);
std::string with_replaced(const Regex& regex, std::string_view text, std::string_view to);

// Throws Error if a tokenizer's steps make so much of a text that no sound tokenizer does. before, after: bytes.
void require_likely(std::size_t before, std::size_t after);

}  // namespace vernier
