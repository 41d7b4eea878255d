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
  const float *a_scales, *b_scales;  // nullptr: none
  std::int64_t count;
  const MatrixUnit* unit;

  int bits() const { return std::min(unit->fraction, 23); }  // the fraction bits of a result
};

// Exponents for which float32 has all powers of two that a fast step needs. A product below 2^-126, which float32
// rounds, is then cut to 0 whatever it is rounded to.
constexpr int most_exponent = 100, least_exponent = -100, below_all = -7000;

int exponent_of(float sum) {
  return sum == 0 ? exponent_of_zero : std::max(std::ilogb(sum), -126);
}

float flushed(float x) {
  return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x;
}

// One sum of one step. float64 has all products exactly, and all sums of products that are cut.
class SlowSum {
 public:
  SlowSum(const Step& step, std::int64_t column, float sum) : step_(step), column_(column), sum_(sum) {}

  float operator()() const {
    using Sum = MatrixUnit::Sum;
    switch (step_.unit->sum) {
      case Sum::pairwise:
        return flushed(sum_ + flushed(flushed(p(0) + p(1)) + flushed(p(2) + p(3))));
      case Sum::fma_pairs:
        return fused(0, fused(1, sum_));
      case Sum::even_odd: {
        float even = 0, odd = 0;
        for (std::int64_t k = 0; k < step_.count; k += 2) {
          even = fused(k, even);
          odd = fused(k + 1, odd);
        }
        return flushed(sum_ + flushed(even + odd));
      }
      case Sum::to_odd:
        return to_odd(sum_, to_odd(exact(0), exact(1)));
      default:
        break;
    }
    float special = std::isfinite(sum_) ? 0 : sum_;
    for (std::int64_t k = 0; k < step_.count; ++k) {
      if (!std::isfinite(a(k)) || !std::isfinite(b(k))) special += a(k) * b(k);
    }
    if (special != 0) return special;
    return step_.unit->sum == Sum::aligned ? aligned() : step_.unit->sum == Sum::block_scaled ? scaled() : floored();
  }

 private:
  float a(std::int64_t k) const { return step_.a[k]; }
  float b(std::int64_t k) const { return step_.b[k * tile_columns + column_]; }
  int exponent(std::int64_t k) const { return step_.a_exponents[k] + step_.b_exponents[k * tile_columns + column_]; }
  // A product of inputs of which subnormal ones are 0. There is none behind the last.
  double exact(std::int64_t k) const {
    const auto input = [](float x, int exponent) { return std::fabs(x) < std::ldexp(1.0, exponent) ? 0.0 : x; };
    if (k >= step_.count) return 0;
    return input(a(k), step_.a_exponents[k]) * input(b(k), step_.b_exponents[k * tile_columns + column_]);
  }
  float p(std::int64_t k) const { return flushed(static_cast<float>(exact(k))); }
  float fused(std::int64_t k, float sum) const {
    return k >= step_.count ? sum : flushed(std::fma(flushed(a(k)), flushed(b(k)), sum));
  }
  // The sum cut toward zero, with the last bit set if that changed it.
  static float to_odd(double x, double y) {
    const double sum = x + y, back = sum - x, error = (x - (sum - back)) + (y - back);
    if (!(std::fabs(sum) < 0x1p128)) return static_cast<float>(std::isnan(sum) ? sum : std::copysign(HUGE_VAL, sum));
    const double below = error != 0 && (error < 0) == (sum > 0) ? std::nextafter(sum, 0.0) : sum;
    if (std::fabs(below) < 0x1p-126) return static_cast<float>(std::copysign(0.0, sum));
    const auto cut = std::bit_cast<double>(std::bit_cast<std::uint64_t>(below) & -(std::uint64_t{1} << 29));
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(cut));
    return std::bit_cast<float>(bits | (cut != sum || error != 0 ? 1U : 0U));
  }

  int largest_exponent(std::int64_t first, std::int64_t stride) const {
    int largest = 2 * exponent_of_zero;
    for (auto k = first; k < step_.count; k += stride) largest = std::max(largest, exponent(k));
    return largest;
  }
  // Sums the products k = first, first + stride, … Each is cut to a multiple of 2^unit. The sum counts such multiples.
  double cut_products(std::int64_t first, std::int64_t stride, int unit) const {
    double sum = 0;
    const double scale = std::ldexp(1.0, -unit);
    for (auto k = first; k < step_.count; k += stride) {
      sum += std::trunc(static_cast<double>(a(k)) * static_cast<double>(b(k)) * scale);
    }
    return sum;
  }
  static double rounded_down(double x, int unit) { return std::ldexp(std::floor(std::ldexp(x, -unit)), unit); }

  float aligned() const {
    const int largest = std::max(exponent_of(sum_), largest_exponent(0, 1)), unit = largest - step_.unit->fraction;
    if (largest < below_all) return 0;
    const double total =
        std::ldexp(std::trunc(std::ldexp(static_cast<double>(sum_), -unit)) + cut_products(0, 1, unit), unit);
    return result_of(total, step_.unit->is_half ? 10 : step_.bits());
  }
  float result_of(double total, int bits) const {
    if (total == 0) return 0;
    const bool is_half = step_.unit->is_half;
    const int least = is_half ? -14 : -126;
    const double one = std::ldexp(1.0, std::max(std::ilogb(total), least) - bits);
    const double value = (is_half ? std::nearbyint(total / one) : std::trunc(total / one)) * one;
    if (value == 0) return 0;
    if (std::fabs(value) < (is_half ? 65536 : 0x1p128)) return static_cast<float>(value);
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(total > 0 ? 1 : -1));
  }

  // Source: MMA-Sim, arXiv 2511.10909.
  float scaled() const {
    constexpr std::int64_t together = 16;
    constexpr int fraction = 35;
    const auto scales_at = [&](std::int64_t k) {
      return std::pair{step_.a_scales == nullptr ? 1 : step_.a_scales[k],
                       step_.b_scales == nullptr ? 1 : step_.b_scales[k * tile_columns + column_]};
    };
    int largest = std::max(exponent_of(sum_), -126);
    for (std::int64_t k = 0; k < step_.count; k += together) {
      const auto [x, y] = scales_at(k);
      if (x != 0 && y != 0) largest = std::max(largest, std::ilogb(x) + std::ilogb(y));
    }
    const auto cut = [&](double x) { return std::trunc(std::ldexp(x, fraction - largest)); };
    double total = cut(sum_);
    for (std::int64_t first = 0; first < step_.count; first += together) {
      double products = 0;
      for (auto k = first; k < std::min(first + together, step_.count); ++k) {
        products += static_cast<double>(a(k)) * static_cast<double>(b(k));
      }
      const auto [x, y] = scales_at(first);
      total += cut(products * x * y);
    }
    return result_of(std::ldexp(total, largest - fraction), 23);
  }

  float floored() const {
    const bool is_twice = step_.unit->sum == MatrixUnit::Sum::floored_twice;
    double products = 0;
    int largest = largest_exponent(0, 1);
    const int of_sum = exponent_of(sum_);
    if (largest < below_all) return sum_;
    for (std::int64_t first = 0; first < (is_twice ? 2 : 1); ++first) {
      const int own = largest_exponent(first, is_twice ? 2 : 1);
      if (own < below_all) continue;
      const double part = std::ldexp(cut_products(first, is_twice ? 2 : 1, own - 24), own - 24);
      products += is_twice ? rounded_down(part, largest - 24) : part;
    }
    largest = std::max(largest, of_sum);
    const bool is_lost = sum_ == 0 || (is_twice && of_sum < largest - 25);
    return static_cast<float>(rounded_down(products, largest - 31) + (is_lost ? 0 : rounded_down(sum_, largest - 24)));
  }

  const Step& step_;
  std::int64_t column_;
  float sum_;
};

// Vectors of the compiler, not of simd_avx2.h: these have 16-bit lanes too, and also the width that each processor has.
template <int bytes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(bytes)));
  typedef std::int32_t Ints __attribute__((vector_size(bytes)));
  typedef std::int16_t Shorts __attribute__((vector_size(bytes)));
  typedef double Doubles __attribute__((vector_size(2 * bytes)));
  typedef std::int64_t Longs __attribute__((vector_size(2 * bytes)));
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

// Equals SlowSum of each column, for aligned sums. Adds the products of a step to tile_columns sums. All numbers are
// multiples of 2^(exponent - fraction) in int32. is_wide: float64 has the sum of a step.
template <int bytes, bool is_wide>
VERNIER_INLINE void fast_step(const Step& step, float* sums, const std::int32_t* exponents) {
  using V = Vectors<bytes>;
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  using Doubles = typename V::Doubles;
  constexpr int at_once = 4;
  for (int first = 0; first < V::groups; first += at_once) {
    Floats scale[at_once];
    Ints exponent[at_once], total[at_once];
    Doubles whole[at_once] = {};
    for (int i = 0; i < at_once; ++i) {
      std::memcpy(&exponent[i], exponents + (first + i) * V::lanes, sizeof(Ints));
      scale[i] = reinterpret_cast<Floats>((127 + step.unit->fraction - exponent[i]) << 23);
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
      if (is_wide && (k % fast_products == fast_products - 1 || k + 1 == step.count)) {
        for (int i = 0; i < at_once; ++i) {
          whole[i] += __builtin_convertvector(total[i], Doubles);
          total[i] = Ints{};
        }
      }
    }
    for (int i = 0; i < at_once; ++i) {
      const auto power = reinterpret_cast<Floats>((127 + exponent[i] - step.unit->fraction) << 23);
      Floats result;
      if constexpr (is_wide) {
        using Longs = typename V::Longs;
        const auto cut =
            reinterpret_cast<Doubles>(reinterpret_cast<Longs>(whole[i]) & -(std::int64_t{1} << (52 - step.bits())));
        result = __builtin_convertvector(cut, Floats);
      } else {
        const Ints sign = total[i] >> 31, magnitude = (total[i] ^ sign) - sign;
        const auto nearest = __builtin_convertvector(magnitude, Floats);
        // The float32 toward zero is the one before, where the nearest is above.
        const Ints is_above = __builtin_convertvector(nearest, Ints) > magnitude;
        Ints bits = reinterpret_cast<Ints>(nearest) + is_above;
        bits = (bits & -(1 << (23 - step.bits()))) | (sign & std::numeric_limits<std::int32_t>::min());
        result = reinterpret_cast<Floats>(bits);
      }
      result *= power;
      std::memcpy(sums + (first + i) * V::lanes, &result, sizeof result);
    }
  }
}

template <int bytes>
VERNIER_INLINE void multiply(const AccumulatorRule& rule, const ProductTile& tile) {
  alignas(64) float sums[tile_rows][tile_columns] = {};
  alignas(64) float totals[tile_rows][tile_columns] = {};
  alignas(64) std::int32_t exponents[tile_columns];
  const auto promote_every = rule.unit.promote_every;
  const bool is_scaled = rule.unit.sum == MatrixUnit::Sum::block_scaled;
  const bool has_scales = !is_scaled && (tile.a_scales != nullptr || tile.b_scales != nullptr);
  for (std::int64_t from = 0; from < tile.k; from += rule.unit.chunk) {
    const auto count = std::min(rule.unit.chunk, tile.k - from);
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      const auto a = i * tile.k + from, b = from * tile_columns;
      const Step step{tile.a + a,
                      tile.a_exponents + a,
                      tile.b + b,
                      tile.b_exponents + b,
                      tile.a_scales == nullptr ? nullptr : tile.a_scales + a,
                      tile.b_scales == nullptr ? nullptr : tile.b_scales + b,
                      count,
                      &rule.unit};
      if (rule.is_fast && align<bytes>(step, sums[i], exponents)) {
        rule.is_wide ? fast_step<bytes, true>(step, sums[i], exponents)
                     : fast_step<bytes, false>(step, sums[i], exponents);
        continue;
      }
      for (std::int64_t j = 0; j < tile.columns; ++j) sums[i][j] = SlowSum(step, j, sums[i][j])();
    }
    if (promote_every == 0 || ((from + count) % promote_every != 0 && from + count != tile.k)) continue;
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      const float of_a = tile.a_scales == nullptr ? 1 : tile.a_scales[i * tile.k + from];
      for (std::int64_t j = 0; j < tile_columns; ++j) {
        const float of_b = tile.b_scales == nullptr ? 1 : tile.b_scales[from * tile_columns + j];
        totals[i][j] = has_scales ? std::fma(sums[i][j], of_a * of_b, totals[i][j]) : totals[i][j] + sums[i][j];
        sums[i][j] = 0;
      }
    }
  }
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    for (std::int64_t j = 0; j < tile.columns; ++j) {
      tile.y[i * tile.y_stride + j] = promote_every == 0 ? sums[i][j] : totals[i][j];
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
