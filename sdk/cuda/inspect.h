// Norms of gradients and the finite check: sums of squares of float32 in float64, which cannot overflow. The order of
// the sums depends on the sizes of the tensors alone.
#pragma once

#include "../core/gpu/library.h"
#include "chunks.h"

namespace vernier::gpu {

using NumberChunks = Chunks<Numbers, 128, 16384>;

// One sum for each chunk.
struct SquareSums {
  static constexpr unsigned threads = 256;
  struct Shared {
    double sums[threads];
  };
  NumberChunks chunks;
  double* to;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const auto place = chunks.at(block.index);
    const float* const numbers = chunks.items[place.item].first;
    block.each([&](unsigned thread) { shared.sums[thread] = sum_of(numbers, place.start + thread, place.end); });
    sum_in_block<threads>(block, shared.sums);
    block.each([&](unsigned thread) {
      if (thread == 0) to[block.index] = shared.sums[0];
    });
  }
  static VERNIER_BOTH double sum_of(const float* numbers, std::int64_t i, std::int64_t end) {
    constexpr int at_once = 8;
    double sums[at_once] = {};
    for (; i + std::int64_t{at_once - 1} * threads < end; i += std::int64_t{at_once} * threads) {
      VERNIER_UNROLL for (int k = 0; k < at_once; ++k) {
        const double number = numbers[i + std::int64_t{k} * threads];
        sums[k] = fma(number, number, sums[k]);
      }
    }
    for (; i < end; i += threads) {
      const double number = numbers[i];
      sums[0] = fma(number, number, sums[0]);
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
};

// The sum of a list by one block.
template <class Block>
VERNIER_BOTH void sum_list(const Block& block, const double* list, std::int64_t count, double* sums) {
  constexpr unsigned threads = SquareSums::threads;
  block.each([&](unsigned thread) {
    double sum = 0;
    for (std::int64_t i = thread; i < count; i += threads) sum += list[i];
    sums[thread] = sum;
  });
  sum_in_block<threads>(block, sums);
}

// A block sums the chunks of one tensor. squares: sum for each tensor; norms: its root.
struct TensorSums {
  static constexpr unsigned threads = SquareSums::threads;
  using Shared = SquareSums::Shared;
  NumberChunks chunks;
  const double* from;
  double *squares, *norms;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const std::int32_t first = chunks.first[block.index];
    sum_list(block, from + first, chunks.first[block.index + 1] - first, shared.sums);
    block.each([&](unsigned thread) {
      if (thread != 0) return;
      squares[block.index] = shared.sums[0];
      norms[block.index] = sqrt(shared.sums[0]);
    });
  }
};

struct Total {
  static constexpr unsigned threads = SquareSums::threads;
  using Shared = SquareSums::Shared;
  const double* squares;
  std::int64_t count;
  double* norm;
  float* found_inf;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    sum_list(block, squares, count, shared.sums);
    block.each([&](unsigned thread) {
      if (thread != 0) return;
      *norm = sqrt(shared.sums[0]);
      *found_inf = shared.sums[0] < 1.7976931348623157e308 ? 0.0F : 1.0F;  // neither inf nor NaN
    });
  }
};

}  // namespace vernier::gpu
