// Pairs of characters that stand side by side in a token. Between two others no token reaches, so a text may be cut
// there.
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe/bpe.h"
#include "text/unicode/unicode.h"

namespace vernier {

class Neighbours {
 public:
  Neighbours() = default;
  explicit Neighbours(std::vector<std::pair<char32_t, char32_t>> pairs);

  bool has(char32_t before, char32_t behind) const {
    const auto row = place(before), column = place(behind);
    if (row < known && column < known) return frequent_[row * known + column];
    return others_.find(before, behind) != nullptr;
  }

 private:
  // ASCII and U+2581, which stands for a space, have a table of their own.
  static constexpr std::size_t known = 129;
  static std::size_t place(char32_t code) { return code < 128 ? code : code == 0x2581 ? 128 : known; }

  std::array<bool, known * known> frequent_{};
  MergeTable others_;
};

// The end of the part of a text that begins at a byte: the first place between two characters that are apart.
template <class IsApart>
std::size_t part_end(std::string_view text, std::size_t at, const IsApart& is_apart) {
  auto before = character_at(text, at);
  for (at += before.size; at < text.size(); at += before.size) {
    const auto behind = character_at(text, at);
    if (is_apart(before.code, behind.code)) return at;
    before = behind;
  }
  return at;
}

}  // namespace vernier
