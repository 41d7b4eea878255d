// Byte-pair encoding (Sennrich et al., ACL 2016) on integers: the table of merges, the joining of one piece, and a
// cache of pieces.
#pragma once

#include <vernier/text/tokenizer.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace vernier {

struct Merge {
  std::uint32_t rank = 0;  // the lowest is done first
  TokenId joined = 0;
};

// Merges by the pair that they join. A table of open addresses, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t most = 0);
  void put(std::uint32_t left, std::uint32_t right, Merge merge);  // replaces that of the same pair
  const Merge* find(std::uint32_t left, std::uint32_t right) const {
    for (auto i = place(key(left, right));; i = (i + 1) & mask_) {
      if (slots_[i].key == key(left, right)) return &slots_[i].merge;
      if (slots_[i].key == empty) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = empty;
    Merge merge;
  };
  static std::uint64_t key(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }
  std::size_t place(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> shift_ & mask_; }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  unsigned shift_ = 0;
};

// Joins the pair of the lowest rank, the leftmost of several, until no pair of the word is in the table. It has memory
// to work in, so each thread has its own.
class Joiner {
 public:
  // Throws Error for a word of more than 2^28 symbols.
  void join(const MergeTable& merges, std::vector<TokenId>& word);

 private:
  struct Symbol {
    TokenId id;
    std::int32_t before, after;  // places, -1: none
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t place;  // place of the left symbol
    TokenId joined;
    // std::push_heap has the largest first.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  void add(const MergeTable& merges, std::int32_t left);
  void work_off(const MergeTable& merges);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

// The ids of the pieces that came last. A piece has one place, and takes it from the one before.
class PieceCache {
 public:
  struct Entry;
  PieceCache();
  // The entry of the piece; null if it is too long.
  Entry* entry(std::string_view piece);

  struct alignas(64) Entry {  // a line of the processor's cache
    static constexpr std::size_t most_bytes = 30, most_ids = 8;
    std::uint8_t size = 0;  // bytes; 0: empty
    std::uint8_t count = 0;
    std::array<char, most_bytes> bytes;
    std::array<TokenId, most_ids> ids;

    bool has(std::string_view piece) const { return std::string_view(bytes.data(), size) == piece; }
    void keep(std::string_view piece, std::span<const TokenId> found);  // nothing if there are too many
  };

 private:
  std::vector<Entry> entries_;
};

}  // namespace vernier
