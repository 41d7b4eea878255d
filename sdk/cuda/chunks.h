// The tensors of one launch, and which part of which tensor a block works on. They are arguments of the kernel,
// so nothing is copied to the device beforehand, and a CUDA graph captures them.
#pragma once

#include "grid.h"

namespace vernier::gpu {

template <class Item, unsigned most, std::int64_t elements>
struct Chunks {
  static constexpr std::int64_t size = elements;  // elements of a chunk; the last one of a tensor may be smaller
  Item items[most];
  std::int32_t first[most + 1];  // chunk of each item
  std::int32_t count;

  struct Place {
    std::int32_t item;
    std::int64_t start, end;  // elements of it
  };
  VERNIER_BOTH Place at(unsigned chunk) const {
    std::int32_t low = 0, high = count;
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      (first[middle] <= static_cast<std::int32_t>(chunk) ? low : high) = middle;
    }
    const std::int64_t start = (static_cast<std::int32_t>(chunk) - first[low]) * size;
    return {low, start, least(start + size, items[low].count)};
  }
};

// Divides a list into as many launches as it takes. Each gets at most `most` items, and chunks that fit into a grid.
// launch(chunks, blocks, index of the first item) returns Trouble.
template <class Item, unsigned most, std::int64_t elements, class Launch>
Trouble in_launches(const Item* items, std::int64_t count, const Launch& launch) {
  constexpr std::int64_t largest_grid = 1 << 30;
  for (std::int64_t start = 0; start < count;) {
    Chunks<Item, most, elements> chunks{};
    std::int64_t blocks = 0;
    std::int32_t taken = 0;
    for (; taken < static_cast<std::int32_t>(most) && start + taken < count; ++taken) {
      const std::int64_t more = (items[start + taken].count + elements - 1) / elements;
      if (taken > 0 && blocks + more > largest_grid) break;
      chunks.items[taken] = items[start + taken];
      chunks.first[taken] = static_cast<std::int32_t>(blocks);
      blocks += more;
    }
    chunks.first[taken] = static_cast<std::int32_t>(blocks);
    chunks.count = taken;
    if (const Trouble trouble = launch(chunks, blocks, start); trouble != nullptr) return trouble;
    start += taken;
  }
  return nullptr;
}

}  // namespace vernier::gpu
