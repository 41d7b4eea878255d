// Byte-level BPE, as GPT-2 has it (Radford et al., 2019): the bytes of each piece are joined.
#include <optional>

#include "model.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

// Returns the token's bytes; nothing if one of its characters stands for none.
std::optional<std::string> bytes_in(std::string_view token) {
  static const auto byte_of = [] {
    std::unordered_map<char32_t, char> all;
    for (unsigned byte = 0; byte < 256; ++byte) {
      all[character_at(byte_characters()[byte], 0).code] = static_cast<char>(byte);
    }
    return all;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const auto [code, size] = character_at(token, at);
    const auto found = byte_of.find(code);
    if (found == byte_of.end()) return std::nullopt;
    bytes += found->second;
    at += size;
  }
  return bytes;
}

class ByteBpe final : public Model {
 public:
  explicit ByteBpe(const TokenizerFile& file) : merges_(file.merges.size()) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      of_byte_[byte] = file.vocabulary.at(byte_characters()[byte]);
      of_last_byte_[byte] = file.vocabulary.at(byte_characters()[byte] + file.suffix);
    }
    for (const auto& [left, right, joined, rank] : file.merges) {
      merges_.put(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right), {rank, joined});
    }
    if (!file.ignore_merges) return;
    for (const auto& [token, id] : file.vocabulary) {
      if (const auto bytes = bytes_in(token)) whole_.emplace(*bytes, id);
    }
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const override {
    add_piece(piece, scratch, ids, [&] { join(piece, scratch); });
  }

 private:
  void join(std::string_view piece, Scratch& scratch) const {
    if (!whole_.empty()) {
      if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
        scratch.word.push_back(found->second);
        return;
      }
    }
    for (const char c : piece) scratch.word.push_back(of_byte_[static_cast<unsigned char>(c)]);
    scratch.word.back() = of_last(piece);
    scratch.joiner.join(merges_, scratch.word);
  }
  TokenId of_last(std::string_view piece) const { return of_last_byte_[static_cast<unsigned char>(piece.back())]; }

  MergeTable merges_;
  std::array<TokenId, 256> of_byte_{}, of_last_byte_{};
  std::unordered_map<std::string, TokenId> whole_;  // if merges are ignored for a piece that is a token
};

}  // namespace

std::string bytes_of_token(std::string_view token) {
  return bytes_in(token).value_or(std::string(token));
}

std::unique_ptr<const Model> byte_bpe(const TokenizerFile& file) {
  return std::make_unique<ByteBpe>(file);
}

}  // namespace vernier
