// `precompiled_charsmap` of SentencePiece: texts, and what stands in their place. It is a double array (Aoe, 1989) in
// the layout of darts-clone, and behind it the texts, each with a zero byte at its end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

class CharacterMap {
 public:
  // Throws Error with the reason for a map that is damaged.
  explicit CharacterMap(std::string_view bytes);

  struct Rule {
    std::size_t size;       // size of the text that is replaced
    std::string_view text;  // the replacement
  };
  // The longest text of the map that `text` begins with, as SentencePiece takes it.
  std::optional<Rule> longest(std::string_view text) const { return find(text, false); }
  // True if an ASCII character stays what it is before another one, for longest().
  bool keeps(unsigned char byte) const { return keeps_[byte]; }

  // The text as `tokenizers` changes it. It takes the shortest text of the map for a whole grapheme of less than six
  // bytes, and otherwise for each character.
  std::string apply(std::string_view text) const;

 private:
  std::optional<Rule> find(std::string_view text, bool is_shortest) const;
  bool has_rule_of_ascii(unsigned char byte) const;
  std::vector<std::uint32_t> units_;
  std::array<bool, 256> keeps_{};
  std::string texts_;
};

}  // namespace vernier
