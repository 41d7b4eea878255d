#include "segments.h"

#include <algorithm>

#include "text/files/tokenizer_file.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr char32_t space_code = 0x2581;

std::unique_ptr<const Model> model_of(const TokenizerFile& file) {
  using Kind = TokenizerFile::Model;
  if (file.model == Kind::unigram) return unigram(file);
  if (file.model != Kind::bpe) return word_piece(file);
  return file.is_byte_level ? byte_bpe(file) : character_bpe(file);
}

bool is_of_tokens(const DecodeStep& step) {
  return step.kind == DecodeStep::Kind::replace || step.kind == DecodeStep::Kind::strip;
}

}  // namespace

Segments::Segments(const TokenizerFile& file, std::size_t vocabulary)
    : normalizer_(file.normalizer),
      pre_tokenizer_(file.pieces),
      model_(model_of(file)),
      decoder_(file.decoder),
      is_byte_decoded_(decoder_.size() == 1 && decoder_[0].kind == DecodeStep::Kind::byte_level),
      texts_(vocabulary) {
  for (const auto& [token, id] : file.vocabulary) texts_[static_cast<std::size_t>(id)] = token;
  for (const auto& [id, text] : file.decoded) texts_[static_cast<std::size_t>(id)] = text;
  for (const auto& token : file.added) {
    const bool changes = token.is_normalized && !token.is_as_it_is;
    texts_[static_cast<std::size_t>(token.id)] = changes ? normalized(token.text, Place::beginning) : token.text;
  }
  // Steps that change each token by itself are done once.
  std::vector<DecodeStep> once;
  while (!decoder_.empty() && is_of_tokens(decoder_.front())) {
    once.push_back(decoder_.front());
    decoder_.erase(decoder_.begin());
  }
  for (auto& text : texts_) {
    if (text && !once.empty()) text = decode_tokens(once, {*text});
    if (text && is_byte_decoded_) text = bytes_of_token(*text);
  }
}

void Segments::encode(std::string_view segment, Place place, Scratch& scratch, std::vector<TokenId>& ids) const {
  pre_tokenizer_.each(segment, place, scratch.pieces,
                      [&](std::string_view piece) { model_->encode(piece, scratch, ids); });
}

bool Segments::can_cut(char32_t before, char32_t behind) const {
  if (!normalizer_.can_cut(before, behind)) return false;
  if (pre_tokenizer_.ends_piece(before, behind)) return true;
  if (!pre_tokenizer_.keeps_whole()) return false;
  if (char_classes()[before] == CharClass::white) return false;  // a token may swallow it
  const bool has_marks = normalizer_.marks_spaces() || pre_tokenizer_.marks_spaces();
  const auto code = [&](char32_t c) { return has_marks && c == U' ' ? space_code : c; };
  return model_->is_apart(code(before), code(behind));
}

std::string Segments::decode(std::span<const TokenId> ids) const {
  std::vector<std::string> tokens;
  std::string bytes;
  for (const auto id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= texts_.size()) continue;
    const auto& text = texts_[static_cast<std::size_t>(id)];
    if (!text) continue;
    if (is_byte_decoded_) {
      bytes += *text;
    } else {
      tokens.push_back(*text);
    }
  }
  if (!is_byte_decoded_) return decode_tokens(decoder_, std::move(tokens));
  return valid_utf8(bytes) == bytes.size() ? bytes : with_replacements(bytes);
}

std::optional<std::string> Segments::bytes(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= texts_.size() || !texts_[static_cast<std::size_t>(id)]) return {};
  const auto& text = *texts_[static_cast<std::size_t>(id)];
  if (is_byte_decoded_) return text;
  using Kind = DecodeStep::Kind;
  const bool has_bytes = std::ranges::any_of(decoder_, [](const DecodeStep& step) {
    return step.kind == Kind::byte_fallback || step.kind == Kind::sentence_piece;
  });
  if (const auto byte = has_bytes ? byte_of_token(text) : std::nullopt) return std::string(1, *byte);
  // Behind another text: the first space of a text may be left out.
  const auto before = decode_tokens(decoder_, {"a"}), whole = decode_tokens(decoder_, {"a", text});
  return whole.starts_with(before) ? std::optional(whole.substr(before.size())) : std::nullopt;
}

}  // namespace vernier
