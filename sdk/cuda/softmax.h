// The softmax of rows of logits, as cross entropy needs it: the sums of a row, then the slopes of its loss. Both read
// the logits once. The sums of a thread are float32, those of a row float64.
#pragma once

#include "kinds.h"

namespace vernier::gpu {

// The number that exponents are taken from: the largest logit, or 0 where all are -inf.
template <class Number>
VERNIER_BOTH Number base_of(Number largest) {
  return largest == -static_cast<Number>(INFINITY) ? 0 : largest;
}

template <class Numbers>
struct RowSums {
  static constexpr unsigned threads = 256;
  struct Shared {
    float own[threads], largest[threads];
    double sums[threads], totals[threads];
  };
  SoftmaxSums rows;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const auto* const logits =
        static_cast<const typename Numbers::Number*>(rows.logits) + std::int64_t{block.index} * rows.stride;
    block.each([&](unsigned thread) { sum_up(logits, thread, shared); });
    for (unsigned half = threads / 2; half > 0; half /= 2) {
      block.each([&](unsigned thread) {
        if (thread < half) shared.largest[thread] = fmaxf(shared.largest[thread], shared.largest[thread + half]);
      });
    }
    block.each([&](unsigned thread) {
      shared.sums[thread] *= exp(static_cast<double>(shared.own[thread]) - base_of(shared.largest[0]));
    });
    sum_in_block<threads>(block, shared.sums);
    if (rows.total != nullptr) sum_in_block<threads>(block, shared.totals);
    block.each([&](unsigned thread) {
      if (thread == 0) add(logits, block.index, shared);
    });
  }

  static VERNIER_BOTH float larger(float a, float b) { return fmaxf(a, b); }  // NaN is not: it stays in the sums

  VERNIER_BOTH void sum_up(const typename Numbers::Number* logits, unsigned thread, Shared& shared) const {
    constexpr int at_once = 8;
    float largest = -INFINITY, sum = 0, total = 0;
    const auto take = [&](const float* x, int count) {
      float most = largest;
      VERNIER_UNROLL for (int k = 0; k < count; ++k) most = larger(most, x[k]);
      const float base = base_of(most);
      sum *= expf(largest - base);
      VERNIER_UNROLL for (int k = 0; k < count; ++k) {
        sum += expf(x[k] - base);
        total += x[k];
      }
      largest = most;
    };
    std::int64_t i = thread;
    for (; i + std::int64_t{at_once - 1} * threads < rows.columns; i += std::int64_t{at_once} * threads) {
      float x[at_once];
      VERNIER_UNROLL for (int k = 0; k < at_once; ++k) x[k] = Numbers::wide(logits[i + std::int64_t{k} * threads]);
      take(x, at_once);
    }
    for (; i < rows.columns; i += threads) {
      const float x = Numbers::wide(logits[i]);
      take(&x, 1);
    }
    shared.own[thread] = shared.largest[thread] = largest;
    shared.sums[thread] = sum;
    shared.totals[thread] = total;
  }

  VERNIER_BOTH void add(const typename Numbers::Number* logits, std::int64_t row, const Shared& shared) const {
    const float before = rows.largest[row], here = shared.largest[0], now = larger(before, here);
    const double base = base_of(now);
    rows.sums[row] = rows.sums[row] * exp(before - base) + shared.sums[0] * exp(base_of(here) - base);
    rows.largest[row] = now;
    const std::int64_t column = rows.target[row] - rows.first;
    if (column >= 0 && column < rows.columns) rows.chosen[row] = Numbers::wide(logits[column]);
    if (rows.total != nullptr) rows.total[row] += shared.totals[0];
  }
};

// A block writes the slopes of one row.
template <class Numbers>
struct RowSlopes {
  static constexpr unsigned threads = 256;
  struct Shared {};
  SoftmaxSlopes rows;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    const std::int64_t row = block.index, start = row * rows.stride;
    const auto* const logits = static_cast<const typename Numbers::Number*>(rows.logits) + start;
    auto* const to = static_cast<typename Numbers::Number*>(rows.to) + start;
    const auto all = static_cast<float>(rows.all[row]), spread = static_cast<float>(rows.spread[row]);
    const float largest = rows.largest[row], log_sum = rows.log_sums[row];
    const std::int64_t target = rows.target[row] - rows.first;
    // At the target, softmax - 1 is exact where it is nearly 0, and smoothing leaves something of the 1.
    const auto slope = [&](std::int64_t i, float x) {
      const float log_share = x - largest - log_sum;
      if (i != target) return expf(log_share) * all - spread;
      const double whole = rows.all[row], kept = whole - rows.hit[row] - rows.spread[row];
      return static_cast<float>(whole * expm1(static_cast<double>(x) - largest - log_sum) + kept);
    };
    constexpr int at_once = 8;
    block.each([&](unsigned thread) {
      std::int64_t i = thread;
      for (; i + std::int64_t{at_once - 1} * threads < rows.columns; i += std::int64_t{at_once} * threads) {
        float x[at_once];
        VERNIER_UNROLL for (int k = 0; k < at_once; ++k) x[k] = Numbers::wide(logits[i + std::int64_t{k} * threads]);
        VERNIER_UNROLL for (int k = 0; k < at_once; ++k) {
          const std::int64_t j = i + std::int64_t{k} * threads;
          to[j] = Numbers::narrow(all == 0 ? 0.0F : slope(j, x[k]));
        }
      }
      for (; i < rows.stride; i += threads) {
        const bool is_nothing = all == 0 || i >= rows.columns;
        to[i] = Numbers::narrow(is_nothing ? 0.0F : slope(i, Numbers::wide(logits[i])));
      }
    });
  }
};

}  // namespace vernier::gpu
