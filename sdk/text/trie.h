// Texts with a number each, to find those that a text begins with: a double array (Aoe, 1989), so that a step to a
// child is one access.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace vernier {

class Trie {
 public:
  Trie() = default;
  // The texts are different, and no number is negative.
  explicit Trie(std::vector<std::pair<std::string_view, std::int32_t>> entries);

  // Calls use(size, number) for each text that `text` begins with, the shortest first.
  template <class Use>
  void prefixes(std::string_view text, const Use& use) const {
    auto base = root_;
    for (std::size_t size = 1; size <= text.size(); ++size) {
      const auto byte = static_cast<unsigned char>(text[size - 1]);
      const auto& node = nodes_[base ^ byte];
      if (node.byte != byte) return;
      if (node.number >= 0) use(size, node.number);
      base = node.base;
    }
  }

  struct Match {
    std::size_t size = 0;  // 0: there is none
    std::int32_t number = -1;
  };
  Match longest(std::string_view text) const {
    Match match;
    prefixes(text, [&](std::size_t size, std::int32_t number) { match = {size, number}; });
    return match;
  }

  // True if a text begins with the byte.
  bool has_first(unsigned char byte) const { return nodes_[root_ ^ byte].byte == byte; }

 private:
  class Builder;
  static constexpr std::uint16_t no_byte = 256;
  static constexpr std::size_t block = 256;  // nodes; all children of a node are in one block
  struct Node {
    std::uint32_t base = 0;  // the child of a byte is at `base ^ byte`; no two nodes have the same, but those without
    std::int32_t number = -1;
    std::uint16_t byte = no_byte;  // the byte that leads here; no_byte: the place is free
  };

  std::vector<Node> nodes_ = std::vector<Node>(block);  // the first block stays free: it is that of no children
  std::uint32_t root_ = 0;
};

}  // namespace vernier
