// BPE of characters, as SentencePiece has it (Kudo and Richardson, EMNLP 2018) and Llama 2 uses it: a piece may be the
// whole text. A character that is not a token becomes the tokens of its bytes, or the unknown token.
//
// To join a whole text would take time and memory. So a piece is cut between two characters that stand side by side in
// no token that a merge makes: no merge ever reaches over that place, and the ids are the same.
#include "model.h"
#include "neighbours.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

class CharacterBpe final : public Model {
 public:
  explicit CharacterBpe(const TokenizerFile& file)
      : ignore_merges_(file.ignore_merges),
        fuses_(file.fuse_unknown),
        has_bytes_(file.byte_fallback),
        has_suffix_(!file.suffix.empty()),
        unknown_(file.unknown),
        merges_(file.merges.size()) {
    for (const auto& [token, id] : file.vocabulary) {
      if (ignore_merges_) whole_.emplace(token, id);
      put_code(of_code_, token, id);
      if (token.ends_with(file.suffix)) {
        put_code(of_last_code_, std::string_view(token).substr(0, token.size() - file.suffix.size()), id);
      }
    }
    for (unsigned byte = 0; has_bytes_ && byte < 256; ++byte) of_byte_[byte] = file.vocabulary.at(byte_token(byte));
    read_merges(file);
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const override {
    const auto apart = [&](char32_t before, char32_t behind) { return is_apart(before, behind); };
    for (std::size_t at = 0; at < piece.size();) {
      const auto end = joins_whole() ? piece.size() : part_end(piece, at, apart);
      const auto part = piece.substr(at, end - at);
      add_piece(part, scratch, ids, [&] { join(part, scratch); });
      at = end;
    }
  }

  bool is_apart(char32_t before, char32_t behind) const override {
    if (joins_whole() || joins_all_ || side_by_side_.has(before, behind)) return false;
    return has_bytes_ || !fuses_ || of_code_.contains(before) || of_code_.contains(behind);
  }

 private:
  using Codes = std::unordered_map<char32_t, TokenId>;

  static void put_code(Codes& codes, std::string_view token, TokenId id) {
    const auto first = character_at(token.empty() ? std::string_view("\0", 1) : token, 0);
    if (first.size == token.size()) codes.emplace(first.code, id);
  }

  // True if a part of a piece may have other ids than the piece has there, since the end of a piece matters.
  bool joins_whole() const { return ignore_merges_ || has_suffix_; }

  void read_merges(const TokenizerFile& file) {
    std::vector<std::pair<char32_t, char32_t>> neighbours;
    std::unordered_map<TokenId, std::string_view> texts;
    for (const auto& [token, id] : file.vocabulary) texts.emplace(id, token);
    for (const auto& [left, right, joined, rank] : file.merges) {
      merges_.put(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right), {rank, joined});
      const auto before = texts[left], behind = texts[right];
      const bool is_of_characters =
          !before.empty() && !behind.empty() && !stands_for_others(left, before) && !stands_for_others(right, behind);
      if (!is_of_characters) {
        joins_all_ = true;
        continue;
      }
      const auto last = character_at(before, character_before(before, before.size())).code;
      neighbours.emplace_back(last, character_at(behind, 0).code);
    }
    side_by_side_ = Neighbours(std::move(neighbours));
  }
  // A token whose text is not that of the characters it comes from.
  bool stands_for_others(TokenId id, std::string_view text) const {
    return (has_bytes_ && byte_of_token(text)) || unknown_ == id;
  }

  void join(std::string_view piece, Scratch& scratch) const {
    auto& word = scratch.word;
    if (ignore_merges_) {
      if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
        word.push_back(found->second);
        return;
      }
    }
    bool after_unknown = false;
    for (std::size_t at = 0; at < piece.size();) {
      const auto [code, size] = character_at(piece, at);
      const auto& codes = has_suffix_ && at + size == piece.size() ? of_last_code_ : of_code_;
      const auto found = codes.find(code);
      const bool is_unknown = found == codes.end() && !has_bytes_;
      if (found != codes.end()) {
        word.push_back(found->second);
      } else if (has_bytes_) {
        for (const char byte : piece.substr(at, size)) word.push_back(of_byte_[static_cast<unsigned char>(byte)]);
      } else if (!(fuses_ && after_unknown)) {
        word.push_back(*unknown_);
      }
      after_unknown = is_unknown;
      at += size;
    }
    scratch.joiner.join(merges_, word);
  }

  bool ignore_merges_, fuses_, has_bytes_, has_suffix_;
  std::optional<TokenId> unknown_;
  MergeTable merges_;
  Neighbours side_by_side_;  // characters that a merge brings together
  bool joins_all_ = false;   // merges of tokens that stand for other characters
  Codes of_code_, of_last_code_;
  std::array<TokenId, 256> of_byte_{};
  std::unordered_map<std::string, TokenId> whole_;
};

}  // namespace

std::unique_ptr<const Model> character_bpe(const TokenizerFile& file) {
  return std::make_unique<CharacterBpe>(file);
}

}  // namespace vernier
