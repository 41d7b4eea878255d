#include "neighbours.h"

#include <algorithm>

namespace vernier {

Neighbours::Neighbours(std::vector<std::pair<char32_t, char32_t>> pairs) {
  std::erase_if(pairs, [&](const auto& pair) {
    const auto row = place(pair.first), column = place(pair.second);
    if (row == known || column == known) return false;
    return frequent_[row * known + column] = true;
  });
  std::ranges::sort(pairs);
  const auto twice = std::ranges::unique(pairs);
  pairs.erase(twice.begin(), twice.end());
  others_ = MergeTable(pairs.size());
  for (const auto& [before, behind] : pairs) others_.put(before, behind, {});
}

}  // namespace vernier
