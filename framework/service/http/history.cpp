#include "history.h"

#include <algorithm>
#include <cmath>

namespace vernier {

void History::add(std::int64_t step, double value) {
  if (!std::isfinite(value)) return;
  if (!parts_.empty() && step >= parts_.back().step && step < parts_.back().step + width_) {
    parts_.back().min = std::min(parts_.back().min, value);
    parts_.back().max = std::max(parts_.back().max, value);
    return;
  }
  if (parts_.size() == most) {
    join(parts_);
    width_ *= 2;
  }
  parts_.push_back({step, value, value});
}

void History::join(std::vector<Part>& parts) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < parts.size(); i += 2) {
    const auto& next = parts[std::min(i + 1, parts.size() - 1)];
    parts[count++] = {parts[i].step, std::min(parts[i].min, next.min), std::max(parts[i].max, next.max)};
  }
  parts.resize(count);
}

std::vector<History::Part> History::parts(std::size_t limit) const {
  auto parts = parts_;
  while (parts.size() > limit) join(parts);
  return parts;
}

}  // namespace vernier
