// The checked content of a tokenizer's folder, in the parts of tokenizer.json: `normalizer`, `pre_tokenizer`, `model`,
// `post_processor` and `decoder`. Files of other kinds are translated into them. All errors are of
// Error::Kind::configuration and begin with the path of the file.
#pragma once

#include <vernier/text/tokenizer.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace vernier {

constexpr TokenId most_tokens = 1 << 24;
constexpr std::size_t most_bytes_of_token = 4096;        // a reader looks up each pair of the token's parts
constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581, which stands for a space
constexpr double not_in_text = -std::numeric_limits<double>::infinity();

struct TokenizerFile {
  std::string path;

  // The model. All ids are below most_tokens.
  enum class Model : std::uint8_t { bpe, word_piece, word_level, unigram };
  Model model = Model::bpe;
  std::unordered_map<std::string, TokenId> vocabulary;
  std::optional<TokenId> unknown;
  bool byte_fallback = false;  // a character that is not a token becomes the tokens of its bytes, such as <0xE4>
  // of BPE
  struct Pair {
    TokenId left, right, joined;
    std::uint32_t rank;  // the lowest is joined first
  };
  std::vector<Pair> merges;
  bool is_byte_level = false;  // works on bytes
  bool ignore_merges = false;  // a piece that is a token is that token
  bool fuse_unknown = false;
  std::string suffix;  // stands behind the last character of a piece in the vocabulary
  // of WordPiece
  std::string prefix;  // prefix of tokens that do not begin a word
  std::size_t most_characters = std::numeric_limits<std::size_t>::max();
  // of Unigram
  std::vector<double> scores;  // by id; not_in_text: a token of `sentencepiece` that no text has
  double unknown_score = 0;
  bool is_float32 = false;  // sums are rounded as in `sentencepiece`

  std::vector<AddedToken> added;
  std::vector<TokenId> before, after;  // tokens that are added around a text

  std::vector<NormalStep> normalizer;
  std::vector<PieceStep> pieces;
  std::vector<DecodeStep> decoder;
  std::unordered_map<TokenId, std::string> decoded;  // tokens that the decoder reads as another text

  std::optional<std::string> end_of_text;
};

TokenizerFile read_tokenizer_folder(const std::filesystem::path& folder);

// The characters that stand for bytes in the files of byte-level BPE, in UTF-8: "Ġ" for a space
// (https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode).
const std::array<std::string, 256>& byte_characters();

// The token of a byte in a vocabulary of characters, "<0xE4>", and the byte of such a token.
std::string byte_token(unsigned byte);
std::optional<char> byte_of_token(std::string_view token);

}  // namespace vernier
