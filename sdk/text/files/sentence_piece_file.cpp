// tokenizer.model of SentencePiece, a message of protocol buffers
// (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto).
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "text/unicode/unicode.h"
#include "tokenizer_files.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

// The fields of a message, one after another.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}
  bool next() {
    if (rest_.empty()) return false;
    const auto key = varint();
    field = static_cast<unsigned>(key >> 3);
    number = 0;
    text = {};
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        text = take(varint());
        break;
      case 5:
        text = take(4);
        break;
      default:
        refuse("has a field of an unknown kind");
    }
    return true;
  }
  float real() const {
    float value = 0;
    if (text.size() != sizeof value) refuse("has a number of another kind");
    std::memcpy(&value, text.data(), sizeof value);
    if (!std::isfinite(value)) refuse("has a score that is not finite");
    return value;
  }

  unsigned field = 0;
  std::uint64_t number = 0;  // the field's number, or else 0
  std::string_view text;     // the field's text, or else empty

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    refuse("has a number of more than 64 bits");
  }
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) refuse("ends in the middle of a field");
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

struct Piece {
  enum Type : std::uint64_t { normal = 1, unknown, control, user_defined, unused, byte };
  std::string text;
  float score = 0;
  std::uint64_t type = normal;
};

// The part of the file that Vernier reads, with the defaults of the format.
struct Spec {
  std::vector<Piece> pieces;
  std::uint64_t model_type = 1;  // Unigram; 2: BPE
  bool has_suffix_space = false, byte_fallback = false;
  std::int64_t end = 2;
  std::string unknown_surface = " \xE2\x81\x87 ";
  std::string map;
  bool adds_space = true, removes_spaces = true, marks_spaces = true;
};

Piece read_piece(Message message) {
  Piece piece;
  while (message.next()) {
    if (message.field == 1) piece.text = message.text;
    if (message.field == 2) piece.score = message.real();
    if (message.field == 3) piece.type = message.number;
  }
  return piece;
}

void read_trainer(Message message, Spec& spec) {
  while (message.next()) {
    if (message.field == 3) spec.model_type = message.number;
    if (message.field == 24) spec.has_suffix_space = message.number != 0;
    if (message.field == 35) spec.byte_fallback = message.number != 0;
    if (message.field == 42) spec.end = static_cast<std::int64_t>(message.number);
    if (message.field == 44) spec.unknown_surface = message.text;
  }
}

void read_normalizer(Message message, Spec& spec) {
  while (message.next()) {
    if (message.field == 2) spec.map = message.text;
    if (message.field == 3) spec.adds_space = message.number != 0;
    if (message.field == 4) spec.removes_spaces = message.number != 0;
    if (message.field == 5) spec.marks_spaces = message.number != 0;
  }
}

Spec read_spec(std::string_view bytes) {
  constexpr const char* wrong_count = "has not between 1 and 16777216 tokens";
  Spec spec, back;
  for (Message message(bytes); message.next();) {
    if (spec.pieces.size() > most_tokens) refuse(wrong_count);
    if (message.field == 1) spec.pieces.push_back(read_piece(Message(message.text)));
    if (message.field == 2) read_trainer(Message(message.text), spec);
    if (message.field == 3) read_normalizer(Message(message.text), spec);
    if (message.field == 5) read_normalizer(Message(message.text), back);
  }
  if (spec.pieces.empty() || spec.pieces.size() > most_tokens) refuse(wrong_count);
  if (spec.model_type != 1 && spec.model_type != 2) refuse("is neither Unigram nor BPE");
  if (spec.has_suffix_space) refuse("has `treat_whitespace_as_suffix`, which Vernier does not have");
  if (!spec.marks_spaces) refuse("has no `escape_whitespaces`, and Vernier has it only with");
  if (!back.map.empty()) refuse("has a `denormalizer_spec`, which Vernier does not have");
  return spec;
}

bool is_in_text(const Piece& piece) {
  return piece.type == Piece::normal || piece.type == Piece::user_defined;
}

// The vocabulary, and what each kind of token means.
void put_pieces(const Spec& spec, TokenizerFile& file) {
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto& piece = spec.pieces[i];
    const auto id = static_cast<TokenId>(i);
    if (piece.text.empty() || piece.text.size() > most_bytes_of_token || valid_utf8(piece.text) != piece.text.size()) {
      refuse("has a token that is empty, not UTF-8 or longer than 4096 bytes, of the id " + std::to_string(i));
    }
    if (!file.vocabulary.emplace(piece.text, id).second) refuse("has the token " + in_quotes(piece.text) + " twice");
    if (piece.type == Piece::unknown) {
      file.unknown = id;
      file.decoded[id] = spec.unknown_surface;
    }
    if (piece.type == Piece::control) {
      file.added.push_back({.id = id, .text = piece.text, .is_special = true, .is_in_text = false});
    }
    if (piece.type == Piece::unused && spec.model_type == 2) {
      refuse("has the unused token " + in_quotes(piece.text) + ", which Vernier has in Unigram only");
    }
  }
  if (!file.unknown) refuse("has no unknown token");
  file.byte_fallback = spec.byte_fallback;
  for (unsigned byte = 0; spec.byte_fallback && byte < 256; ++byte) {
    if (!file.vocabulary.contains(byte_token(byte))) refuse("lacks the byte " + byte_token(byte));
  }
  if (spec.end >= 0 && spec.end < std::ssize(spec.pieces)) {
    file.end_of_text = spec.pieces[static_cast<std::size_t>(spec.end)].text;
  }
}

// Scores of float32, as `sentencepiece` 0.2.3 has them.
void put_scores(const Spec& spec, TokenizerFile& file) {
  constexpr float penalty = 10;
  constexpr float bonus = 0.1F;  // score for each byte but the first of a token that the user has defined
  float least = std::numeric_limits<float>::max();
  for (const auto& piece : spec.pieces) {
    if (piece.type == Piece::normal) least = std::min(least, piece.score);
  }
  file.model = TokenizerFile::Model::unigram;
  file.is_float32 = true;
  file.unknown_score = least - penalty;
  for (const auto& piece : spec.pieces) {
    const auto more = static_cast<float>(piece.text.size() - 1);
    file.scores.push_back(piece.type == Piece::user_defined ? static_cast<double>(bonus * more)
                          : piece.type == Piece::normal     ? static_cast<double>(piece.score)
                                                            : not_in_text);
  }
}

// Refuses characters of tokens that are not tokens themselves: they would be joined, too, which CharacterBpe does not
// do.
void require_characters(const Spec& spec, const std::unordered_map<std::string, std::uint32_t>& tokens) {
  for (const auto& piece : spec.pieces) {
    const auto& text = piece.text;
    if (piece.type != Piece::normal) continue;
    for (std::size_t at = 0; at < text.size();) {
      const auto one = text.substr(at, character_at(text, at).size);
      if (!tokens.contains(one)) {
        refuse("has the token " + in_quotes(text) + ", and no token for its character " + in_quotes(one));
      }
      at += one.size();
    }
  }
}

// The token of a higher score is joined first.
void put_merges(const Spec& spec, TokenizerFile& file) {
  std::vector<float> scores;
  for (const auto& piece : spec.pieces) scores.push_back(piece.score);
  std::ranges::sort(scores, std::ranges::greater());
  const auto twice = std::ranges::unique(scores);
  scores.erase(twice.begin(), twice.end());
  std::unordered_map<std::string, std::uint32_t> ranks;
  for (const auto& piece : spec.pieces) {
    if (!is_in_text(piece)) continue;
    const auto rank = std::ranges::lower_bound(scores, piece.score, std::ranges::greater()) - scores.begin();
    ranks.emplace(piece.text, static_cast<std::uint32_t>(rank));
  }
  require_characters(spec, ranks);
  file.fuse_unknown = true;
  add_merges_by_rank(file, ranks);
}

void put_normalizer(const Spec& spec, TokenizerFile& file) {
  NormalStep step{.kind = NormalStep::Kind::sentence_piece};
  step.adds_space = spec.adds_space;
  step.removes_spaces = spec.removes_spaces;
  if (!spec.map.empty()) step.map = std::make_shared<const CharacterMap>(spec.map);
  std::vector<std::pair<std::string_view, TokenId>> kept;
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto& piece = spec.pieces[i];
    if (piece.type != Piece::user_defined) continue;
    kept.emplace_back(piece.text, static_cast<TokenId>(i));
    if (spec.model_type != 2) continue;
    AddedToken token{.id = static_cast<TokenId>(i), .text = piece.text};
    token.is_normalized = token.is_as_it_is = true;
    file.added.push_back(std::move(token));
  }
  if (!kept.empty()) step.kept = std::make_shared<const Trie>(std::move(kept));
  file.normalizer = {step};
  file.decoder = {{.kind = DecodeStep::Kind::sentence_piece,
                   .drops_first = spec.adds_space || spec.removes_spaces,
                   .drops_all = spec.removes_spaces}};
}

}  // namespace

void read_sentence_piece(std::string_view bytes, TokenizerFile& file) {
  try {
    const auto spec = read_spec(bytes);
    put_pieces(spec, file);
    put_normalizer(spec, file);
    if (spec.model_type == 2) {
      put_merges(spec, file);
    } else {
      put_scores(spec, file);
    }
  } catch (const Error& error) {
    refuse("'" + file.path + "': it " + message(error));
  }
}

}  // namespace vernier
