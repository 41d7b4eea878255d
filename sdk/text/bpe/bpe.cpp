#include "bpe.h"

#include <vernier/error.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace vernier {

MergeTable::MergeTable(std::size_t most) {
  const auto size = std::bit_ceil(std::max<std::size_t>(2 * most, 16));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64U - static_cast<unsigned>(std::bit_width(mask_));
}

void MergeTable::put(std::uint32_t left, std::uint32_t right, Merge merge) {
  auto i = place(key(left, right));
  while (slots_[i].key != empty && slots_[i].key != key(left, right)) i = (i + 1) & mask_;
  slots_[i] = {key(left, right), merge};
}

void Joiner::join(const MergeTable& merges, std::vector<TokenId>& word) {
  constexpr std::size_t most = std::size_t{1} << 28;
  if (word.size() > most) {
    refuse("a piece of the text has more than 268435456 characters without a place to cut; is it text?");
  }
  if (word.size() < 2) return;
  symbols_.clear();
  candidates_.clear();
  const auto last = static_cast<std::int32_t>(word.size()) - 1;
  for (std::int32_t i = 0; i <= last; ++i) {
    symbols_.push_back({word[static_cast<std::size_t>(i)], i - 1, i < last ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i < last; ++i) add(merges, i);
  if (candidates_.empty()) return;
  std::make_heap(candidates_.begin(), candidates_.end());
  work_off(merges);
  word.clear();
  for (std::int32_t i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].after) {
    word.push_back(symbols_[static_cast<std::size_t>(i)].id);
  }
}

void Joiner::add(const MergeTable& merges, std::int32_t left) {
  const auto& symbol = symbols_[static_cast<std::size_t>(left)];
  const auto right = symbols_[static_cast<std::size_t>(symbol.after)].id;
  const auto* merge = merges.find(static_cast<std::uint32_t>(symbol.id), static_cast<std::uint32_t>(right));
  if (merge != nullptr) candidates_.push_back({merge->rank, left, merge->joined});
}

void Joiner::work_off(const MergeTable& merges) {
  constexpr TokenId gone = -1;
  const auto at = [&](std::int32_t place) -> Symbol& { return symbols_[static_cast<std::size_t>(place)]; };
  const auto add_to_heap = [&](std::int32_t left) {
    const auto before = candidates_.size();
    add(merges, left);
    if (candidates_.size() > before) std::push_heap(candidates_.begin(), candidates_.end());
  };
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    const auto candidate = candidates_.back();
    candidates_.pop_back();
    auto& left = at(candidate.place);
    if (left.id == gone || left.after < 0) continue;
    auto& right = at(left.after);
    // Since then another merge may have taken one of the two. The package compares what they give, not their rank.
    const auto* merge = merges.find(static_cast<std::uint32_t>(left.id), static_cast<std::uint32_t>(right.id));
    if (merge == nullptr || merge->joined != candidate.joined) continue;
    left.id = merge->joined;
    right.id = gone;
    left.after = right.after;
    if (left.after >= 0) {
      at(left.after).before = candidate.place;
      add_to_heap(candidate.place);
    }
    if (left.before >= 0) add_to_heap(left.before);
  }
}

PieceCache::PieceCache() : entries_(std::size_t{1} << 15) {}

PieceCache::Entry* PieceCache::entry(std::string_view piece) {
  if (piece.size() > Entry::most_bytes) return nullptr;
  return &entries_[XXH3_64bits(piece.data(), piece.size()) & (entries_.size() - 1)];
}

void PieceCache::Entry::keep(std::string_view piece, std::span<const TokenId> found) {
  if (found.size() > most_ids) return;
  size = static_cast<std::uint8_t>(piece.size());
  count = static_cast<std::uint8_t>(found.size());
  std::ranges::copy(piece, bytes.begin());
  std::ranges::copy(found, ids.begin());
}

}  // namespace vernier
