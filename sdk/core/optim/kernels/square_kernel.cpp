// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "square_kernel.h"

#include "base/intrinsics.h"
#include "base/kernels.h"
#include "base/targets.h"

namespace vernier {

namespace {

// The square of a float32 is exact in float64, and lanes and their order are fixed: vectors of any width, with or
// without fused multiplication, give the same bits.
constexpr std::int64_t lanes = 16;
// Elements fetched early: a processor's own prefetching stops at each 4 KB page, and 2 KB are less than memory is late.
constexpr std::int64_t ahead = 2048;

// The lanes, and the rest of the chunk from `done` on.
double sum_of_lanes(const double* sums, const SquarePart& part, std::int64_t done) {
  double four[4];
  for (int k = 0; k < 4; ++k) four[k] = (sums[k] + sums[4 + k]) + (sums[8 + k] + sums[12 + k]);
  double sum = (four[0] + four[1]) + (four[2] + four[3]);
  for (auto i = done; i < part.count; ++i) {
    const double value = part.first[i];
    sum += value * value;
  }
  return sum;
}

// The plain loop.
double sum_plain(const SquarePart& part) {
  double sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= part.count; i += lanes) {
    for (std::int64_t k = 0; k < lanes; ++k) {
      const double value = part.first[i + k];
      sums[k] += value * value;
    }
  }
  return sum_of_lanes(sums, part, i);
}

// By name: compilers keep the sums above in memory, and convert four numbers in seven instructions.
VERNIER_AVX2 double sum_avx2(const SquarePart& part) {
  __m256d a = {}, b = {}, c = {}, d = {};
  const auto add = [](__m256d & sum, const float* from) __attribute__((always_inline)) VERNIER_AVX2 {
    const auto wide = _mm256_cvtps_pd(_mm_loadu_ps(from));
    sum = _mm256_fmadd_pd(wide, wide, sum);
  };
  const auto add_lanes = [&](std::int64_t i) __attribute__((always_inline)) VERNIER_AVX2 {
    add(a, part.first + i);
    add(b, part.first + i + 4);
    add(c, part.first + i + 8);
    add(d, part.first + i + 12);
  };
  std::int64_t i = 0;
  for (; i + lanes + ahead <= part.count; i += lanes) {
    __builtin_prefetch(part.first + i + ahead);
    add_lanes(i);
  }
  for (const auto* next = part.next; i + lanes <= part.count; i += lanes, next += lanes) {
    __builtin_prefetch(next);
    add_lanes(i);
  }
  double sums[lanes];
  _mm256_storeu_pd(sums, a);
  _mm256_storeu_pd(sums + 4, b);
  _mm256_storeu_pd(sums + 8, c);
  _mm256_storeu_pd(sums + 12, d);
  return sum_of_lanes(sums, part, i);
}

constexpr SquareKernels plain_kernels = {sum_plain}, avx2_kernels = {sum_avx2};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::plain, plain_kernels, SquareKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, avx2_kernels, SquareKernels)

}  // namespace vernier
