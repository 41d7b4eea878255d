// A pass over the elements of a chunk by the threads of a block.
#pragma once

#include "chunks.h"

namespace vernier::gpu {

// Rule::load(i) reads what the update of element i needs, Rule::update(i, loaded) computes and writes it. A thread
// reads four elements before it writes one, because a GPU waits for its memory most of the time.
template <unsigned threads, class Place, class Rule>
VERNIER_BOTH void update_elements(const Place& place, unsigned thread, const Rule& rule) {
  constexpr int at_once = 4;
  std::int64_t i = place.start + thread;
  for (; i + std::int64_t{at_once - 1} * threads < place.end; i += std::int64_t{at_once} * threads) {
    typename Rule::Loaded loaded[at_once];
    VERNIER_UNROLL for (int k = 0; k < at_once; ++k) loaded[k] = rule.load(i + std::int64_t{k} * threads);
    VERNIER_UNROLL for (int k = 0; k < at_once; ++k) rule.update(i + std::int64_t{k} * threads, loaded[k]);
  }
  for (; i < place.end; i += threads) rule.update(i, rule.load(i));
}

VERNIER_BOTH bool is_skipped(const float* found_inf) {
  return found_inf != nullptr && *found_inf != 0;
}

// A gradient as all rules begin with it.
struct GradientScale {
  float divisor, sign;
  bool divides;
  VERNIER_BOTH float operator()(float gradient) const { return (divides ? gradient / divisor : gradient) * sign; }
};
VERNIER_BOTH GradientScale gradient_scale(const float* grad_scale, float sign) {
  const float divisor = grad_scale == nullptr ? 1.0F : *grad_scale;
  return {divisor, sign, divisor != 1};
}

}  // namespace vernier::gpu
