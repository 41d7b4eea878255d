// Texts with a number each, to find those that a text begins with.
#pragma once

#include <array>
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
    if (text.empty()) return;
    auto node = first_[static_cast<unsigned char>(text[0])];
    for (std::size_t size = 1; node != none; ++size) {
      if (nodes_[node].number >= 0) use(size, nodes_[node].number);
      node = size < text.size() ? child(node, static_cast<unsigned char>(text[size])) : none;
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

  bool empty() const { return nodes_.empty(); }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Node {
    std::uint32_t begin = 0;  // of its children in nodes_, by their byte
    std::int32_t number = -1;
    std::uint16_t count = 0;
    std::uint8_t byte = 0;
  };
  static constexpr std::array<std::uint32_t, 256> no_node() {
    std::array<std::uint32_t, 256> all{};
    all.fill(none);
    return all;
  }

  std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    auto begin = nodes_[node].begin;
    for (auto count = std::uint32_t{nodes_[node].count}; count > 0;) {
      const auto half = count / 2;
      if (nodes_[begin + half].byte == byte) return begin + half;
      if (nodes_[begin + half].byte < byte) {
        begin += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    return none;
  }

  std::vector<Node> nodes_;
  std::array<std::uint32_t, 256> first_ = no_node();
};

}  // namespace vernier
