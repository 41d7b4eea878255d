// Compiled with vectorisation (CMakeLists.txt).
#include "pool_kernel.h"

#include <algorithm>
#include <cstring>
#include <limits>

// From here on everything is compiled for AVX2.
#include "base/simd_avx2.h"

namespace vernier {

namespace {

constexpr std::int64_t together = 64;  // windows of a row

struct Windows {
  float largest[together];
  std::int32_t places[together];
};

// The windows [first, first + count) of a row meet one number each: `from` has that of window 0. stride: 0 if it is not
// known when this is compiled.
template <std::int64_t known_stride>
VERNIER_INLINE void meet(const float* from, std::int64_t place, std::int64_t stride, std::int64_t begin,
                         std::int64_t end, std::int64_t first, Windows& windows) {
  const auto step = known_stride > 0 ? known_stride : stride;
  for (auto i = begin; i < end; ++i) {
    const float number = from[i * step], before = windows.largest[i - first];
    const bool wins = number > before || number != number;
    windows.largest[i - first] = wins ? number : before;
    windows.places[i - first] = wins ? static_cast<std::int32_t>(place + i * step) : windows.places[i - first];
  }
}

template <std::int64_t known_stride>
VERNIER_INLINE void pool(const PoolSide& height, const PoolSide& width, const float* image, float* out,
                         std::int64_t* places) {
  Windows windows;
  for (std::int64_t row = 0; row < height.most; ++row) {
    const auto top = row * height.stride - height.padding;
    const auto begin = std::max<std::int64_t>(top, 0), end = std::min(top + height.kernel, height.size);
    for (std::int64_t first = 0; first < width.most; first += together) {
      const auto last = std::min(first + together, width.most);
      for (auto i = first; i < last; ++i) {
        windows.largest[i - first] = -std::numeric_limits<float>::infinity();
        windows.places[i - first] =
            static_cast<std::int32_t>(begin * width.size + std::max<std::int64_t>(i * width.stride - width.padding, 0));
      }
      for (auto y = begin; y < end; ++y) {
        for (std::int64_t x = 0; x < width.kernel; ++x) {
          const auto shift = x - width.padding;  // place of the number that window 0 meets
          const auto from = shift >= 0 ? 0 : (-shift + width.stride - 1) / width.stride;
          const auto to = shift >= width.size ? 0 : (width.size - 1 - shift) / width.stride + 1;
          meet<known_stride>(image + y * width.size + shift, y * width.size + shift, width.stride,
                             std::max(first, from), std::min(last, to), first, windows);
        }
      }
      for (auto i = first; i < last; ++i) {
        out[row * width.most + i] = windows.largest[i - first];
        places[row * width.most + i] = windows.places[i - first];
      }
    }
  }
}

// Eight windows of a row that lie side by side: the largest number of each so far, and how far it is from the first.
struct EightWindows {
  __m256 largest;
  __m256i distance;
};

// Each window meets its number in `next`, which is `distance` away from its first.
VERNIER_INLINE EightWindows meet(const EightWindows& windows, __m256 next, std::int64_t distance) {
  const __m256 wins =
      _mm256_or_ps(_mm256_cmp_ps(next, windows.largest, _CMP_GT_OQ), _mm256_cmp_ps(next, next, _CMP_UNORD_Q));
  return {
      _mm256_blendv_ps(windows.largest, next, wins),
      _mm256_blendv_epi8(windows.distance, _mm256_set1_epi32(static_cast<int>(distance)), _mm256_castps_si256(wins))};
}

// Pools an image in windows of 2x2 without padding, eight at a time. It splits a row into its even and its odd columns,
// which leaves the windows in the order 0 1 4 5 2 3 6 7. They are put in order before they are written.
VERNIER_INLINE void pool_2x2(std::int64_t rows, const PoolSide& width, const float* image, float* out,
                             std::int64_t* places) {
  constexpr int even = 0x88, odd = 0xDD, in_order = 0xD8;
  const auto columns = _mm256_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width.most; i += lanes) {
      const auto count = first(width.most - i), left = first(2 * count), right = 2 * count - left;
      const auto place = 2 * (row * width.size + i);
      const float *const top = image + place, *const bottom = top + width.size;
      const auto load_right = [&](const float* from) { return right > 0 ? load(from + lanes, right) : filled(0); };
      const auto top_left = load(top, left), top_right = load_right(top);
      const auto bottom_left = load(bottom, left), bottom_right = load_right(bottom);
      EightWindows windows{_mm256_shuffle_ps(top_left, top_right, even), _mm256_setzero_si256()};
      windows = meet(windows, _mm256_shuffle_ps(top_left, top_right, odd), 1);
      windows = meet(windows, _mm256_shuffle_ps(bottom_left, bottom_right, even), width.size);
      windows = meet(windows, _mm256_shuffle_ps(bottom_left, bottom_right, odd), width.size + 1);
      store(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(windows.largest), in_order)),
            out + row * width.most + i, count);
      const auto found = _mm256_permute4x64_epi64(
          _mm256_add_epi32(_mm256_add_epi32(windows.distance, columns), _mm256_set1_epi32(static_cast<int>(place))),
          in_order);
      alignas(32) std::int64_t wide[lanes];
      _mm256_store_si256(reinterpret_cast<__m256i*>(wide), _mm256_cvtepi32_epi64(_mm256_castsi256_si128(found)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(wide + 4),
                         _mm256_cvtepi32_epi64(_mm256_extracti128_si256(found, 1)));
      std::memcpy(places + row * width.most + i, wide, static_cast<std::size_t>(count) * sizeof(*wide));
    }
  }
}

// The plain loop: each window begins with -inf, and out = x, place = its index for each x in it, row by row, that is
// larger than out or NaN. Here the numbers that stand at one place of their windows meet them together.
void max_pool(const PoolSide& height, const PoolSide& width, const float* image, float* out, std::int64_t* places) {
  const auto is_pair = [](const PoolSide& side) {
    return side.kernel == 2 && side.stride == 2 && side.padding == 0 && 2 * side.most <= side.size;
  };
  if (is_pair(height) && is_pair(width)) return pool_2x2(height.most, width, image, out, places);
  if (width.stride == 1) return pool<1>(height, width, image, out, places);
  if (width.stride == 2) return pool<2>(height, width, image, out, places);
  pool<0>(height, width, image, out, places);
}

constexpr PoolKernels pool_kernels = {max_pool};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::avx2, pool_kernels, PoolKernels)

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
