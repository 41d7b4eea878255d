#include "trie.h"

#include <algorithm>
#include <span>

namespace vernier {

// Gives the children of each node their places.
class Trie::Builder {
 public:
  explicit Builder(std::vector<Node>& nodes)
      : nodes_(nodes), before_(block), after_(block), failures_(block), is_base_(block) {}

  // Returns the base of a node.
  std::uint32_t place(std::span<const unsigned char> bytes) {
    const auto base = find(bytes);
    is_base_[base] = true;
    for (const auto byte : bytes) {
      const auto i = base ^ byte;
      nodes_[i].byte = byte;
      unlink(i);
    }
    return base;
  }

 private:
  // A single child takes the oldest free place that suits it, so that they are used up; several look among the newest.
  std::uint32_t find(std::span<const unsigned char> bytes) {
    constexpr int most_tries = 64, most_failures = 16;
    const bool is_one = bytes.size() == 1;
    auto i = is_one ? after_[0] : before_[0];
    for (int tries = 0; i != 0 && (is_one || tries < most_tries); ++tries) {
      const auto base = i ^ bytes[0];
      const auto is_free = [&](unsigned char byte) { return nodes_[base ^ byte].byte == no_byte; };
      if (!is_base_[base] && std::ranges::all_of(bytes, is_free)) return base;
      const auto next = is_one ? after_[i] : before_[i];
      if (is_one && ++failures_[i] == most_failures) unlink(i);
      i = next;
    }
    return add_block();
  }
  void unlink(std::uint32_t i) {
    after_[before_[i]] = after_[i];
    before_[after_[i]] = before_[i];
    after_[i] = before_[i] = i;
  }
  std::uint32_t add_block() {
    const auto begin = static_cast<std::uint32_t>(nodes_.size());
    const auto size = begin + block;
    nodes_.resize(size);
    before_.resize(size);
    after_.resize(size);
    failures_.resize(size);
    is_base_.resize(size);
    for (auto i = begin; i < size; ++i) {
      before_[i] = before_[0];
      after_[before_[0]] = i;
      before_[0] = i;
    }
    return begin;
  }

  std::vector<Node>& nodes_;
  std::vector<std::uint32_t> before_, after_;  // a ring of the free places; 0 stands between the last and the first
  std::vector<std::uint8_t> failures_;
  std::vector<bool> is_base_;
};

namespace {

// A node, and the sorted entries that begin with its bytes.
struct Range {
  std::size_t node, begin, end, depth;
};

}  // namespace

Trie::Trie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.first.empty(); });
  std::ranges::sort(entries);
  Builder builder(nodes_);
  Node root;
  std::vector<Range> rest = {{0, 0, entries.size(), 0}};
  std::vector<unsigned char> bytes;
  std::vector<std::size_t> begins;
  for (bool is_root = true; !rest.empty(); is_root = false) {
    auto [node, begin, end, depth] = rest.back();
    rest.pop_back();
    const auto byte_of = [&, depth = depth](std::size_t i) {
      return static_cast<unsigned char>(entries[i].first[depth]);
    };
    if (!is_root && entries[begin].first.size() == depth) nodes_[node].number = entries[begin++].second;
    if (begin == end) continue;
    bytes.clear();
    begins.clear();
    for (auto i = begin; i < end; ++i) {
      if (i > begin && byte_of(i) == bytes.back()) continue;
      bytes.push_back(byte_of(i));
      begins.push_back(i);
    }
    const auto base = builder.place(bytes);
    (is_root ? root : nodes_[node]).base = base;
    begins.push_back(end);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      rest.push_back({base ^ bytes[i], begins[i], begins[i + 1], depth + 1});
  }
  root_ = root.base;
}

}  // namespace vernier
