// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "adam_kernel.h"

#include <vernier/optim.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace vernier {

namespace {

constexpr std::int64_t line = 16;     // elements of a cache line
constexpr std::int64_t ahead = 1024;  // that are fetched early: a processor's own prefetching stops at each 4 KB page

// What both share.
template <class Options>
AdamNumbers numbers_of(const Options& options, double lr, double step, float grad_scale) {
  AdamNumbers numbers;
  numbers.grad_scale = grad_scale;
  numbers.sign = options.maximize ? -1.0F : 1.0F;
  numbers.mean_share = static_cast<float>(1 - options.beta1);
  numbers.beta2 = static_cast<float>(options.beta2);
  numbers.square_share = static_cast<float>(1 - options.beta2);
  numbers.step_size = static_cast<float>(lr / (1 - std::pow(options.beta1, step)));
  numbers.correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, step)));
  numbers.eps = static_cast<float>(options.eps);
  return numbers;
}

struct Arguments {
  const AdamNumbers& numbers;
  std::int64_t count;
  float* parameter;
  const float* gradient;
  float *exp_avg, *exp_avg_sq;
};

// A multiplication by 1 changes nothing, so decay and sign need no branch; an addition of 0 may (-0), nor is a division
// free.
template <bool fuses, bool divides, bool adds_l2>
inline __attribute__((always_inline)) void update(const Arguments& arguments) {
  const AdamNumbers n = arguments.numbers;
  const std::int64_t count = arguments.count, whole = count - count % 8;
  float* __restrict const parameter = arguments.parameter;
  const float* __restrict const gradient = arguments.gradient;
  float* __restrict const exp_avg = arguments.exp_avg;
  float* __restrict const exp_avg_sq = arguments.exp_avg_sq;
  const bool starts_at_mean = n.mean_share < 0.5F;
  const float share = starts_at_mean ? n.mean_share : n.mean_share - 1;

  const auto multiply_add = [](float a, float b, float c) __attribute__((always_inline)) {
    if constexpr (fuses) {
      return __builtin_fmaf(a, b, c);
    } else {
      return a * b + c;
    }
  };
  const auto gradient_at = [&](std::int64_t i) __attribute__((always_inline)) {
    float g = gradient[i];
    if constexpr (divides) g = g / n.grad_scale;
    g *= n.sign;
    if constexpr (adds_l2) g = multiply_add(parameter[i], n.l2, g);
    return g;
  };
  // x / n.correction, exactly: a multiplication with the remainder added (Markstein, IBM J. Res. Dev. 34(1), 1990)
  // takes less than a division. x is a root, so nothing underflows.
  const float inverse = 1 / n.correction;
  const auto corrected = [&](float x) __attribute__((always_inline)) {
    if constexpr (fuses) {
      const float near = x * inverse, exact = __builtin_fmaf(__builtin_fmaf(-near, n.correction, x), inverse, near);
      return near == std::numeric_limits<float>::infinity() ? near : exact;
    } else {
      return x / n.correction;
    }
  };
  const auto finish = [&](std::int64_t i, float mean, float square) __attribute__((always_inline)) {
    const float root = corrected(__builtin_sqrtf(square)) + n.eps;
    const float updated = parameter[i] * n.decay - n.step_size * mean / root;
    exp_avg[i] = mean;
    exp_avg_sq[i] = square;
    parameter[i] = updated;
  };

  const auto update_at = [&](std::int64_t i) __attribute__((always_inline)) {
    const float g = gradient_at(i);
    finish(i, multiply_add(share, g - exp_avg[i], starts_at_mean ? exp_avg[i] : g),
           multiply_add(g, n.square_share * g, exp_avg_sq[i] * n.beta2));
  };

  std::int64_t i = 0;
  for (; i + line <= whole; i += line) {
    __builtin_prefetch(gradient + i + ahead);
    __builtin_prefetch(parameter + i + ahead, 1);
    __builtin_prefetch(exp_avg + i + ahead, 1);
    __builtin_prefetch(exp_avg_sq + i + ahead, 1);
    for (std::int64_t k = i; k < i + line; ++k) update_at(k);
  }
  for (; i < whole; ++i) update_at(i);
  for (; i < count; ++i) {
    const float g = gradient_at(i), way = g - exp_avg[i];
    finish(i, starts_at_mean ? multiply_add(way, share, exp_avg[i]) : multiply_add(-way, 1 - n.mean_share, g),
           multiply_add(exp_avg_sq[i], n.beta2, n.square_share * g * g));
  }
}

template <bool fuses>
inline __attribute__((always_inline)) void update_as_asked(const Arguments& arguments) {
  const bool divides = arguments.numbers.grad_scale != 1, adds_l2 = arguments.numbers.l2 != 0;
  if (divides && adds_l2) return update<fuses, true, true>(arguments);
  if (divides) return update<fuses, true, false>(arguments);
  if (adds_l2) return update<fuses, false, true>(arguments);
  update<fuses, false, false>(arguments);
}

struct InBfloat16 {
  const CountedNoise& noise;
  std::uint32_t place;
  std::uint16_t *exp_avg, *exp_avg_sq;
};

inline __attribute__((always_inline)) std::uint16_t rounded(float number, std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>((is_nan ? 0x7fc00000 : bits + noise) >> 16);
}

template <bool fuses>
inline __attribute__((always_inline)) void update_bfloat16(const Arguments& all, const InBfloat16& kept) {
  constexpr std::int64_t piece = 1024;
  float mean[piece], square[piece];
  const CountedNoise noise = kept.noise;
  for (std::int64_t start = 0; start < all.count; start += piece) {
    const auto count = std::min(piece, all.count - start);
    std::uint16_t* __restrict const exp_avg = kept.exp_avg + start;
    std::uint16_t* __restrict const exp_avg_sq = kept.exp_avg_sq + start;
    for (std::int64_t i = 0; i < count; ++i) {
      mean[i] = std::bit_cast<float>(std::uint32_t{exp_avg[i]} << 16);
      square[i] = std::bit_cast<float>(std::uint32_t{exp_avg_sq[i]} << 16);
    }
    update_as_asked<fuses>({all.numbers, count, all.parameter + start, all.gradient + start, mean, square});
    const auto place = kept.place + static_cast<std::uint32_t>(start);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t word = noise(place + static_cast<std::uint32_t>(i));
      exp_avg[i] = rounded(mean[i], word & 0xffff);
      exp_avg_sq[i] = rounded(square[i], word >> 16);
    }
  }
}

#if defined(__x86_64__)
#define VERNIER_AVX2 __attribute__((target("avx2,fma")))
#else
#define VERNIER_AVX2
#endif
VERNIER_AVX2 void update_with_avx2(const Arguments& arguments) {
  update_as_asked<true>(arguments);
}
VERNIER_AVX2 void update_bfloat16_with_avx2(const Arguments& arguments, const InBfloat16& kept) {
  update_bfloat16<true>(arguments, kept);
}

}  // namespace

AdamNumbers adam_numbers(const AdamOptions& options, double lr, double step, float grad_scale, Rounding) {
  auto numbers = numbers_of(options, lr, step, grad_scale);
  numbers.l2 = static_cast<float>(options.weight_decay);
  return numbers;
}

AdamNumbers adam_numbers(const AdamWOptions& options, double lr, double step, float grad_scale, Rounding rounding) {
  auto numbers = numbers_of(options, lr, step, grad_scale);
  const double decay = options.weight_decay;
  numbers.decay = static_cast<float>(rounding == Rounding::once ? std::fma(-lr, decay, 1.0) : 1 - lr * decay);
  return numbers;
}

void adam_update(Rounding rounding, const AdamNumbers& numbers, std::int64_t count, float* parameter,
                 const float* gradient, float* exp_avg, float* exp_avg_sq) {
  const Arguments arguments{numbers, count, parameter, gradient, exp_avg, exp_avg_sq};
  if (rounding == Rounding::once) return update_with_avx2(arguments);
  update_as_asked<false>(arguments);
}

void adam_update_bfloat16(Rounding rounding, const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                          std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                          std::uint16_t* exp_avg_sq) {
  const Arguments arguments{numbers, count, parameter, gradient, nullptr, nullptr};
  const InBfloat16 kept{noise, place, exp_avg, exp_avg_sq};
  if (rounding == Rounding::once) return update_bfloat16_with_avx2(arguments, kept);
  update_bfloat16<false>(arguments, kept);
}

}  // namespace vernier
