// Compiled with vectorisation (CMakeLists.txt).
#include "pool_kernel.h"

#include <algorithm>
#include <limits>

#include "base/kernels.h"
#include "base/targets.h"

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

// The plain loop: each window begins with -inf, and out = x, place = its index for each x in it, row by row, that is
// larger than out or NaN. Here the numbers that stand at one place of their windows meet them together.
VERNIER_AVX2 void max_pool(const PoolSide& height, const PoolSide& width, const float* image, float* out,
                           std::int64_t* places) {
  if (width.stride == 1) return pool<1>(height, width, image, out, places);
  if (width.stride == 2) return pool<2>(height, width, image, out, places);
  pool<0>(height, width, image, out, places);
}

constexpr PoolKernels pool_kernels = {max_pool};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::avx2, pool_kernels, PoolKernels)

}  // namespace vernier
