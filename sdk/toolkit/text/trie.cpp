#include "trie.h"

#include <algorithm>

namespace vernier {

namespace {

// Sorted entries that begin with the same bytes.
struct Range {
  std::size_t begin, end, depth;  // bytes that are the same
};

}  // namespace

Trie::Trie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::ranges::sort(entries);
  std::vector<Range> ranges;  // of the nodes
  const auto add_nodes = [&](std::size_t begin, std::size_t end, std::size_t depth) {
    while (begin < end) {
      const auto byte = static_cast<unsigned char>(entries[begin].first[depth]);
      auto next = begin + 1;
      while (next < end && static_cast<unsigned char>(entries[next].first[depth]) == byte) ++next;
      Node node;
      node.byte = byte;
      nodes_.push_back(node);
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  };
  add_nodes(0, entries.size(), 0);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) first_[nodes_[i].byte] = i;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    auto [begin, end, depth] = ranges[i];
    if (entries[begin].first.size() == depth) nodes_[i].number = entries[begin++].second;
    nodes_[i].begin = static_cast<std::uint32_t>(nodes_.size());
    add_nodes(begin, end, depth);
    nodes_[i].count = static_cast<std::uint16_t>(nodes_.size() - nodes_[i].begin);
  }
}

}  // namespace vernier
