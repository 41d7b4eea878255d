// The checked content of a tokenizer's folder. All errors are of Error::Kind::configuration and begin with the path of
// the file.
#pragma once

#include <vernier/tokenizer.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "added_tokens.h"
#include "text/bpe/bpe.h"
#include "text/bpe/splits.h"

namespace vernier {

constexpr TokenId most_tokens = 1 << 24;
constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581, which stands for a space

struct TokenizerFile {
  std::string path;

  // The model. All ids are below most_tokens.
  std::unordered_map<std::string, TokenId> vocabulary;
  struct Pair {
    TokenId left, right, joined;
  };
  std::vector<Pair> merges;    // by rank
  bool ignore_merges = false;  // a piece that is a token is that token
  bool byte_fallback = false;  // a character that is not a token becomes the tokens of its bytes, such as <0xE4>
  bool fuse_unknown = false;
  std::optional<TokenId> unknown;

  std::vector<AddedToken> added;
  std::vector<TokenId> before, after;  // what is added around a text

  // How a text is cut into what the model works on.
  bool is_byte_level = false;
  // of byte-level BPE
  std::vector<SplitStep> splits = {{PieceRule::gpt2}};
  bool is_nfc = false;
  bool adds_space = false;  // before each text between added tokens that does not begin with one
  // of BPE of characters
  enum class Space : std::uint8_t {
    each,        // put before each text between added tokens
    each_once,   // the same, if it does not begin with one
    first_once,  // only at the beginning of the whole text
    never
  };
  Space space = Space::each;
  bool is_metaspace = false;     // spaces are replaced after the text was normalized, not by that
  bool splits_at_space = false;  // each word is a piece of its own
  bool strips_space = false;     // decoding removes one at the beginning

  std::optional<std::string> end_of_text;  // of tokenizer_config.json
};

TokenizerFile read_tokenizer_folder(const std::filesystem::path& folder);

// The characters that stand for bytes in the files of byte-level BPE, in UTF-8: "Ġ" for a space
// (https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode).
const std::array<std::string, 256>& byte_characters();

// The token of a byte in a vocabulary of characters: "<0xE4>".
std::string byte_token(unsigned byte);

}  // namespace vernier
