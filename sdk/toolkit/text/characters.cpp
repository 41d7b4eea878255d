// BPE of characters, as SentencePiece has it (Kudo and Richardson, EMNLP 2018) and Llama 2 uses it: a space is the
// character U+2581, and the whole text is one word. A character that is not a token becomes the tokens of its bytes.
//
// To join a whole text would take time and memory. So it is cut between two characters that stand side by side in no
// token that a merge makes: no merge ever reaches over that place, and the ids are the same.
#include <algorithm>

#include "segments.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr char32_t space_code = 0x2581;
constexpr char hex_digits[] = "0123456789ABCDEF";

// The byte of a token "<0xE4>".
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  for (const char c : token.substr(3, 2)) {
    const auto upper = c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c;
    const auto digit = std::string_view(hex_digits).find(upper);
    if (digit == std::string_view::npos) return std::nullopt;
    byte = byte * 16 + static_cast<unsigned>(digit);
  }
  return static_cast<char>(byte);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0;;) {
    const auto found = text.find(from, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += to;
    at = found + from.size();
  }
}

class CharacterSegments final : public Segments {
 public:
  CharacterSegments(const TokenizerFile& file, std::size_t vocabulary)
      : space_(file.space),
        splits_(file.splits_at_space),
        strips_(file.strips_space),
        is_metaspace_(file.is_metaspace),
        ignore_merges_(file.ignore_merges),
        fuses_(file.fuse_unknown),
        has_bytes_(file.byte_fallback),
        unknown_(file.unknown),
        merges_(file.merges.size()),
        of_token_(vocabulary) {
    for (const auto& [token, id] : file.vocabulary) {
      of_token_[static_cast<std::size_t>(id)] = decoded(token);
      if (ignore_merges_) whole_.emplace(token, id);
      const auto first = character_at(token.empty() ? std::string_view("\0", 1) : token, 0);
      if (first.size == token.size()) of_code_.emplace(first.code, id);
    }
    for (const auto& token : file.added) {
      const auto text = token.is_normalized && !is_metaspace_ ? with_marks(token.text, Place::beginning) : token.text;
      of_token_[static_cast<std::size_t>(token.id)] = decoded(text);
    }
    if (has_bytes_) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        of_byte_[byte] = file.vocabulary.at(byte_token(byte));
      }
    }
    read_merges(file);
  }

  std::string normalized(std::string_view segment, Place place) const override {
    return is_metaspace_ ? std::string(segment) : with_marks(segment, place);
  }

  void encode(std::string_view segment, Place place, Scratch& scratch, std::vector<TokenId>& ids) const override {
    if (is_metaspace_) {
      scratch.text = with_marks(segment, place);
      segment = scratch.text;
    }
    for (std::size_t at = 0; at < segment.size();) {
      const auto end = piece_end(segment, at);
      const auto piece = segment.substr(at, end - at);
      add_piece(piece, scratch, ids, [&] { join(piece, scratch); });
      at = end;
    }
  }

  bool can_cut(char32_t before, char32_t behind) const override {
    if (char_classes()[before] == CharClass::white) return false;  // a token may swallow it
    const auto code = [](char32_t c) { return c == U' ' ? space_code : c; };
    return is_apart(code(before), code(behind)) && !ignore_merges_;
  }

  std::string decode(std::span<const TokenId> ids) const override {
    std::string text, bytes;
    const auto put_bytes = [&] {
      if (valid_utf8(bytes) == bytes.size()) {
        text += bytes;
      } else {
        for (std::size_t i = 0; i < bytes.size(); ++i) text += "\xEF\xBF\xBD";
      }
      bytes.clear();
    };
    for (const auto id : ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= of_token_.size()) continue;
      const auto& token = of_token_[static_cast<std::size_t>(id)];
      if (token.is_byte) {
        bytes += token.text;
      } else if (token.is_there) {
        put_bytes();
        text += token.text;
      }
    }
    put_bytes();
    if (strips_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

 private:
  struct Token {
    std::string text;  // decoded
    bool is_there = false, is_byte = false;
  };
  static Token decoded(const std::string& token) {
    auto text = replaced(token, space_mark, " ");
    if (const auto byte = byte_of(text)) return {std::string(1, *byte), true, true};
    return {std::move(text), true, false};
  }

  // Spaces replaced, and one put before the text where the folder says so.
  std::string with_marks(std::string_view segment, Place place) const {
    using Space = TokenizerFile::Space;
    auto text = replaced(segment, " ", space_mark);
    const bool is_place = place == Place::beginning || (place == Place::after_token && space_ != Space::first_once);
    const bool adds = is_place && (space_ == Space::each || (space_ != Space::never && !text.starts_with(space_mark)));
    return adds ? text.insert(0, space_mark) : text;
  }

  void read_merges(const TokenizerFile& file) {
    std::vector<std::pair<char32_t, char32_t>> neighbours;
    std::vector<std::string_view> texts(of_token_.size());
    for (const auto& [token, id] : file.vocabulary) texts[static_cast<std::size_t>(id)] = token;
    for (std::size_t i = 0; i < file.merges.size(); ++i) {
      const auto& [left, right, joined] = file.merges[i];
      merges_.put(static_cast<std::uint32_t>(left), static_cast<std::uint32_t>(right),
                  {static_cast<std::uint32_t>(i), joined});
      const auto before = texts[static_cast<std::size_t>(left)], behind = texts[static_cast<std::size_t>(right)];
      const bool is_of_characters =
          !before.empty() && !behind.empty() && !stands_for_others(left, file) && !stands_for_others(right, file);
      if (!is_of_characters) {
        joins_all_ = true;
        continue;
      }
      const auto last = character_at(before, character_before(before, before.size())).code;
      neighbours.emplace_back(last, character_at(behind, 0).code);
    }
    std::ranges::sort(neighbours);
    const auto twice = std::ranges::unique(neighbours);
    neighbours.erase(twice.begin(), twice.end());
    side_by_side_ = MergeTable(neighbours.size());
    for (const auto& [before, behind] : neighbours) side_by_side_.put(before, behind, {});
  }
  // A token whose text is not that of the characters it comes from.
  bool stands_for_others(TokenId id, const TokenizerFile& file) const {
    return of_token_[static_cast<std::size_t>(id)].is_byte || file.unknown == id;
  }

  // True if no merge reaches over the place between two characters, nor are unknown ones made one.
  bool is_apart(char32_t before, char32_t behind) const {
    if (splits_ && behind == space_code) return true;
    if (joins_all_ || side_by_side_.find(before, behind) != nullptr) return false;
    return has_bytes_ || !fuses_ || of_code_.contains(before) || of_code_.contains(behind);
  }

  std::size_t piece_end(std::string_view text, std::size_t at) const {
    auto before = character_at(text, at);
    for (at += before.size; at < text.size(); at += before.size) {
      const auto behind = character_at(text, at);
      if (ignore_merges_ ? splits_ && behind.code == space_code : is_apart(before.code, behind.code)) return at;
      before = behind;
    }
    return at;
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
      const auto found = of_code_.find(code);
      const bool is_unknown = found == of_code_.end() && !has_bytes_;
      if (found != of_code_.end()) {
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

  TokenizerFile::Space space_;
  bool splits_, strips_, is_metaspace_, ignore_merges_, fuses_, has_bytes_;
  std::optional<TokenId> unknown_;
  MergeTable merges_;
  MergeTable side_by_side_;  // characters that a merge brings together
  bool joins_all_ = false;   // merges of tokens that stand for other characters
  std::unordered_map<char32_t, TokenId> of_code_;
  std::array<TokenId, 256> of_byte_{};
  std::unordered_map<std::string, TokenId> whole_;
  std::vector<Token> of_token_;  // by id
};

}  // namespace

std::string byte_token(unsigned byte) {
  return std::string("<0x") + hex_digits[byte >> 4] + hex_digits[byte & 15] + ">";
}

std::unique_ptr<const Segments> character_segments(const TokenizerFile& file, std::size_t vocabulary) {
  return std::make_unique<CharacterSegments>(file, vocabulary);
}

}  // namespace vernier
