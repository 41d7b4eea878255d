// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "accumulator_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/targets.h"
#include "lab_kernels.h"

namespace vernier {

namespace {

// One step of one row: `count` products for each of tile_columns sums.
struct Step {
  const float* a;
  const std::int16_t* a_exponents;
  const float* b;
  const std::int16_t* b_exponents;
  std::int64_t count;
  int mantissa;
};

// Exponents for which float32 has all powers of two that a fast step needs. A product below 2^-126, which float32
// rounds, is then cut to 0 whatever it is rounded to.
constexpr int most_exponent = 100, least_exponent = -100, below_all = -7000;

// Cuts to 1 + mantissa significant bits toward zero.
float cut(double x, int mantissa) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), -126) - mantissa);
  const double value = std::trunc(x / unit) * unit;
  if (value == 0) return 0;
  if (std::fabs(value) < 0x1p128) return static_cast<float>(value);
  return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(x > 0 ? 1 : -1));
}

// One sum, by float64, which has all products and all sums of a step exactly.
float slow_sum(const Step& step, std::int64_t column, float sum) {
  int exponent = sum == 0 ? exponent_of_zero : std::isfinite(sum) ? std::max(std::ilogb(sum), -126) : 0;
  float special = sum;
  for (std::int64_t k = 0; k < step.count; ++k) {
    exponent = std::max(exponent, step.a_exponents[k] + step.b_exponents[k * tile_columns + column]);
    const float product = step.a[k] * step.b[k * tile_columns + column];
    const bool is_finite = std::isfinite(step.a[k]) && std::isfinite(step.b[k * tile_columns + column]);
    if (!is_finite) special += product;
  }
  if (!std::isfinite(special)) return special;
  if (exponent < below_all) return 0;
  const double scale = std::ldexp(1.0, step.mantissa - exponent);
  std::int64_t total = static_cast<std::int64_t>(static_cast<double>(sum) * scale);
  for (std::int64_t k = 0; k < step.count; ++k) {
    const double product = static_cast<double>(step.a[k]) * static_cast<double>(step.b[k * tile_columns + column]);
    total += static_cast<std::int64_t>(product * scale);
  }
  return cut(std::ldexp(static_cast<double>(total), exponent - step.mantissa), step.mantissa);
}

// Vectors of the compiler, not of simd_avx2.h: these have 16-bit lanes too, and also the width that each processor has.
template <int bytes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(bytes)));
  typedef std::int32_t Ints __attribute__((vector_size(bytes)));
  typedef std::int16_t Shorts __attribute__((vector_size(bytes)));
  static constexpr int lanes = bytes / 4, groups = static_cast<int>(tile_columns) / lanes;
};

// Writes the exponent to which the numbers of each column are aligned. Returns whether a fast step can take all.
template <int bytes>
VERNIER_INLINE bool align(const Step& step, const float* sums, std::int32_t* exponents) {
  using V = Vectors<bytes>;
  constexpr int parts = V::groups / 2;
  typename V::Shorts most[parts];
  for (int i = 0; i < parts; ++i) most[i] = typename V::Shorts{} - std::int16_t{32000};
  for (std::int64_t k = 0; k < step.count; ++k) {
    const auto a = typename V::Shorts{} + step.a_exponents[k];
#pragma GCC unroll 8
    for (int i = 0; i < parts; ++i) {
      typename V::Shorts b;
      std::memcpy(&b, step.b_exponents + k * tile_columns + i * 2 * V::lanes, sizeof b);
      b += a;
      most[i] = b > most[i] ? b : most[i];
    }
  }
  alignas(64) std::int16_t each[tile_columns];
  std::memcpy(each, most, sizeof each);
  std::int32_t is_beyond = 0;
  for (std::int64_t j = 0; j < tile_columns; ++j) {
    const auto sum = std::bit_cast<std::int32_t>(sums[j]);
    const std::int32_t of_sum = sum == 0 ? exponent_of_zero : (sum >> 23 & 255) - 127;
    const std::int32_t e = each[j] > of_sum ? each[j] : of_sum;
    is_beyond |= (e > most_exponent) | ((e < least_exponent) & (e > below_all));
    exponents[j] = e < least_exponent ? least_exponent : e;
  }
  return is_beyond == 0;
}

// Equals slow_sum() of each column. Adds the products of a step to tile_columns sums. All numbers are multiples of
// 2^(exponent - mantissa) in int32.
template <int bytes>
VERNIER_INLINE void fast_step(const Step& step, float* sums, const std::int32_t* exponents) {
  using V = Vectors<bytes>;
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  constexpr int at_once = 4;
  for (int first = 0; first < V::groups; first += at_once) {
    Floats scale[at_once];
    Ints exponent[at_once], total[at_once];
    for (int i = 0; i < at_once; ++i) {
      std::memcpy(&exponent[i], exponents + (first + i) * V::lanes, sizeof(Ints));
      scale[i] = reinterpret_cast<Floats>((127 + step.mantissa - exponent[i]) << 23);
      Floats sum;
      std::memcpy(&sum, sums + (first + i) * V::lanes, sizeof sum);
      total[i] = __builtin_convertvector(sum * scale[i], Ints);
    }
    for (std::int64_t k = 0; k < step.count; ++k) {
      const auto a = Floats{} + step.a[k];
#pragma GCC unroll 4
      for (int i = 0; i < at_once; ++i) {
        Floats b;
        std::memcpy(&b, step.b + k * tile_columns + (first + i) * V::lanes, sizeof b);
        total[i] += __builtin_convertvector(a * b * scale[i], Ints);  // toward zero
      }
    }
    for (int i = 0; i < at_once; ++i) {
      const Ints sign = total[i] >> 31, magnitude = (total[i] ^ sign) - sign;
      const auto nearest = __builtin_convertvector(magnitude, Floats);
      // The float32 toward zero is the one before, where the nearest is above.
      const Ints is_above = __builtin_convertvector(nearest, Ints) > magnitude;
      Ints bits = reinterpret_cast<Ints>(nearest) + is_above;
      bits = (bits & -(1 << (23 - step.mantissa))) | (sign & std::numeric_limits<std::int32_t>::min());
      const auto power = reinterpret_cast<Floats>((127 + exponent[i] - step.mantissa) << 23);
      const Floats sum = reinterpret_cast<Floats>(bits) * power;
      std::memcpy(sums + (first + i) * V::lanes, &sum, sizeof sum);
    }
  }
}

template <int bytes>
VERNIER_INLINE void multiply(const AccumulatorRule& rule, const ProductTile& tile) {
  alignas(64) float sums[tile_rows][tile_columns] = {};
  alignas(64) float totals[tile_rows][tile_columns] = {};
  alignas(64) std::int32_t exponents[tile_columns];
  for (std::int64_t from = 0; from < tile.k; from += rule.chunk) {
    const auto count = std::min(rule.chunk, tile.k - from);
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      const auto a = i * tile.k + from, b = from * tile_columns;
      const Step step{tile.a + a, tile.a_exponents + a, tile.b + b, tile.b_exponents + b, count, rule.mantissa};
      if (rule.is_fast && align<bytes>(step, sums[i], exponents)) {
        fast_step<bytes>(step, sums[i], exponents);
        continue;
      }
      for (std::int64_t j = 0; j < tile.columns; ++j) sums[i][j] = slow_sum(step, j, sums[i][j]);
    }
    if (rule.promote_every == 0 || (from + count) % rule.promote_every != 0) continue;
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      for (std::int64_t j = 0; j < tile_columns; ++j) {
        totals[i][j] += sums[i][j];
        sums[i][j] = 0;
      }
    }
  }
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    for (std::int64_t j = 0; j < tile.columns; ++j) {
      tile.y[i * tile.y_stride + j] = rule.promote_every == 0 ? sums[i][j] : totals[i][j] + sums[i][j];
    }
  }
}

VERNIER_AVX512 void multiply_512(const AccumulatorRule& rule, const ProductTile& tile) {
  multiply<64>(rule, tile);
}
VERNIER_AVX2 void multiply_256(const AccumulatorRule& rule, const ProductTile& tile) {
  multiply<32>(rule, tile);
}
void multiply_128(const AccumulatorRule& rule, const ProductTile& tile) {
  multiply<16>(rule, tile);
}

constexpr AccumulatorKernels kernels_512 = {multiply_512}, kernels_256 = {multiply_256}, kernels_128 = {multiply_128};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::avx512, kernels_512, AccumulatorKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, kernels_256, AccumulatorKernels)
VERNIER_DEFINE_KERNELS(Instructions::plain, kernels_128, AccumulatorKernels)

}  // namespace vernier
