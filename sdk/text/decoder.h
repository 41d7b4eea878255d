// The steps that make a text of tokens: `decoder` of tokenizer.json, and what SentencePiece does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/bpe/regex.h"

namespace vernier {

struct DecodeStep {
  enum class Kind : std::uint8_t {
    byte_level,      // all tokens become one, of the bytes that their characters stand for
    byte_fallback,   // tokens such as <0xE4> become characters
    fuse,            // all tokens become one
    replace,         // `from` or `regex` by `to`, in each token
    strip,           // `from`, one character, at most `begin` times and `end` times at both ends of each token
    metaspace,       // U+2581 becomes a space; in the first token it goes if `drops_first` is true
    word_piece,      // a space before each token but those that begin with `from`; `cleans` mends punctuation marks
    bpe_suffix,      // `from` becomes a space, and nothing in the last token
    spaces,          // a space between two tokens, if there is no decoder
    sentence_piece,  // all that SentencePiece does
  };
  Kind kind;
  std::string from = {}, to = {};
  std::shared_ptr<const Regex> regex = {};
  std::size_t begin = 0, end = 0;
  bool drops_first = true;  // metaspace, and sentence_piece: U+2581 at the beginning of the text
  bool drops_all = false;   // sentence_piece: all of them, if they are tokens of their own
  bool cleans = true;
};

std::string decode_tokens(const std::vector<DecodeStep>& steps, std::vector<std::string> tokens);

}  // namespace vernier
