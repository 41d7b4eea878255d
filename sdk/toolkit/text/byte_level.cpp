// Byte-level BPE, as GPT-2 has it (Radford et al., 2019): a text is cut into words by a regular expression, and the
// bytes of each are joined.
#include "segments.h"
#include "text/unicode/nfc.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

// The bytes that each character of a token stands for; the token itself if one stands for none.
std::string bytes_of_token(const std::unordered_map<char32_t, char>& byte_of, const std::string& token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const auto [code, size] = character_at(token, at);
    const auto found = byte_of.find(code);
    if (found == byte_of.end()) return token;
    bytes += found->second;
    at += size;
  }
  return bytes;
}

class ByteLevelSegments final : public Segments {
 public:
  ByteLevelSegments(const TokenizerFile& file, std::size_t vocabulary)
      : splits_(file.splits),
        rule_(splits_.size() == 1 ? splits_.front().rule : std::nullopt),
        is_nfc_(file.is_nfc),
        adds_space_(file.adds_space),
        merges_(file.merges.size()),
        bytes_(vocabulary) {
    std::unordered_map<char32_t, char> byte_of;
    for (unsigned byte = 0; byte < 256; ++byte) {
      id_of_byte_[byte] = file.vocabulary.at(byte_characters()[byte]);
      byte_of[character_at(byte_characters()[byte], 0).code] = static_cast<char>(byte);
    }
    for (std::size_t i = 0; i < file.merges.size(); ++i) {
      const auto& [left, right, joined] = file.merges[i];
      merges_.put(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right),
                  {static_cast<std::uint32_t>(i), joined});
    }
    for (const auto& [token, id] : file.vocabulary) {
      auto& bytes = bytes_[static_cast<std::size_t>(id)];
      bytes = bytes_of_token(byte_of, token);
      if (file.ignore_merges) whole_.emplace(bytes, id);
    }
    for (const auto& token : file.added) {
      const auto text = token.is_normalized && is_nfc_ ? nfc(token.text) : token.text;
      bytes_[static_cast<std::size_t>(token.id)] = bytes_of_token(byte_of, text);
    }
  }

  std::string normalized(std::string_view segment, Place) const override {
    return is_nfc_ ? nfc(segment) : std::string(segment);
  }

  void encode(std::string_view segment, Place place, Scratch& scratch, std::vector<TokenId>& ids) const override {
    if (adds_space_ && place != Place::continued && segment[0] != ' ') {
      scratch.text.assign(" ").append(segment);
      segment = scratch.text;
    }
    const auto put = [&](std::string_view piece) { add_piece(piece, scratch, ids, [&] { join(piece, scratch); }); };
    if (!rule_) {
      for (const auto& piece : split_by(splits_, segment)) put(piece);
      return;
    }
    for (std::size_t at = 0; at < segment.size();) {
      const auto end = piece_end(*rule_, segment, at);
      put(segment.substr(at, end - at));
      at = end;
    }
  }

  bool can_cut(char32_t before, char32_t behind) const override {
    return rule_ && always_ends_piece(before, behind) && (!is_nfc_ || begins_anew(behind));
  }

  std::string decode(std::span<const TokenId> ids) const override {
    std::string bytes;
    for (const auto id : ids) {
      if (id >= 0 && static_cast<std::size_t>(id) < bytes_.size()) bytes += bytes_[static_cast<std::size_t>(id)];
    }
    return valid_utf8(bytes) == bytes.size() ? bytes : with_replacements(bytes);
  }

 private:
  void join(std::string_view piece, Scratch& scratch) const {
    if (!whole_.empty()) {
      if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
        scratch.word.push_back(found->second);
        return;
      }
    }
    for (const char c : piece) scratch.word.push_back(id_of_byte_[static_cast<unsigned char>(c)]);
    scratch.joiner.join(merges_, scratch.word);
  }

  std::vector<SplitStep> splits_;
  std::optional<PieceRule> rule_;  // the only split, if it is matched by hand
  bool is_nfc_, adds_space_;
  MergeTable merges_;
  std::array<TokenId, 256> id_of_byte_{};
  std::unordered_map<std::string, TokenId> whole_;  // if merges are ignored for a piece that is a token
  std::vector<std::string> bytes_;                  // by id
};

}  // namespace

std::unique_ptr<const Segments> byte_level_segments(const TokenizerFile& file, std::size_t vocabulary) {
  return std::make_unique<ByteLevelSegments>(file, vocabulary);
}

}  // namespace vernier
