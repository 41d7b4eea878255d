// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "adam_kernel.h"

#include <vernier/optim.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/kernels.h"
#include "base/targets.h"
#include "optim/block_quantisation.h"

namespace vernier {

namespace {

// Shared by both.
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

// The memory of the averages. keep() writes them.
struct InFloat32 {
  float *exp_avg, *exp_avg_sq;
  float mean(std::int64_t i) const { return exp_avg[i]; }
  float square(std::int64_t i) const { return exp_avg_sq[i]; }
  void keep(std::int64_t start, int k, float mean, float square) const {
    exp_avg[start + k] = mean;
    exp_avg_sq[start + k] = square;
  }
};

struct InBfloat16 {
  std::uint16_t *exp_avg, *exp_avg_sq;
  CountedNoise noise;
  std::uint32_t place;
  static float wide(std::uint16_t number) { return std::bit_cast<float>(std::uint32_t{number} << 16); }
  static std::uint16_t rounded(float number, std::uint32_t noise) {
    const float kept = number == number ? number : std::numeric_limits<float>::quiet_NaN();
    return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(kept) + noise) >> 16);
  }
  float mean(std::int64_t i) const { return wide(exp_avg[i]); }
  float square(std::int64_t i) const { return wide(exp_avg_sq[i]); }
  void keep(std::int64_t start, int k, float mean, float square) const {
    const std::uint32_t word = noise(place + static_cast<std::uint32_t>(start) + static_cast<std::uint32_t>(k));
    exp_avg[start + k] = rounded(mean, word & 0xffff);
    exp_avg_sq[start + k] = rounded(square, word >> 16);
  }
};

struct Arguments {
  const AdamNumbers& numbers;
  std::int64_t count;
  float* parameter;
  const float* gradient;
};

// The plain loop of Adam, of which the compiler makes vectors. A multiplication by 1 changes nothing, so decay and sign
// need no branch; an addition of 0 may (-0), nor is a division free.
template <bool fuses, bool divides, bool adds_l2, class Averages>
VERNIER_INLINE void update(const Arguments& arguments, const Averages averages) {
  const AdamNumbers n = arguments.numbers;
  const std::int64_t count = arguments.count, whole = count - count % 8;
  float* const parameter = arguments.parameter;
  const float* const gradient = arguments.gradient;
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
  const auto finish = [&](std::int64_t start, int k, float mean, float square) __attribute__((always_inline)) {
    const std::int64_t i = start + k;
    const float root = corrected(__builtin_sqrtf(square)) + n.eps;
    const float updated = parameter[i] * n.decay - n.step_size * mean / root;
    averages.keep(start, k, mean, square);
    parameter[i] = updated;
  };

  const auto update_at = [&](std::int64_t start, int k) __attribute__((always_inline)) {
    const std::int64_t i = start + k;
    const float g = gradient_at(i), mean = averages.mean(i);
    finish(start, k, multiply_add(share, g - mean, starts_at_mean ? mean : g),
           multiply_add(g, n.square_share * g, averages.square(i) * n.beta2));
  };

  // No two of the arrays overlap: ivdep.
  std::int64_t i = 0;
  for (; i + line <= whole; i += line) {
    __builtin_prefetch(gradient + i + ahead);
    __builtin_prefetch(parameter + i + ahead, 1);
    __builtin_prefetch(averages.exp_avg + i + ahead, 1);
    __builtin_prefetch(averages.exp_avg_sq + i + ahead, 1);
#pragma GCC ivdep
    for (int k = 0; k < line; ++k) update_at(i, k);
  }
#pragma GCC ivdep
  for (int k = 0; k < whole - i; ++k) update_at(i, k);
  i = whole;
  for (; i < count; ++i) {
    const float g = gradient_at(i), mean = averages.mean(i), way = g - mean;
    finish(i, 0, starts_at_mean ? multiply_add(way, share, mean) : multiply_add(-way, 1 - n.mean_share, g),
           multiply_add(averages.square(i), n.beta2, n.square_share * g * g));
  }
}

template <bool fuses, class Averages>
VERNIER_INLINE void update_as_asked(const Arguments& arguments, const Averages& averages) {
  const bool divides = arguments.numbers.grad_scale != 1, adds_l2 = arguments.numbers.l2 != 0;
  if (divides && adds_l2) return update<fuses, true, true>(arguments, averages);
  if (divides) return update<fuses, true, false>(arguments, averages);
  if (adds_l2) return update<fuses, false, true>(arguments, averages);
  update<fuses, false, false>(arguments, averages);
}

void update_plain(const AdamNumbers& numbers, std::int64_t count, float* parameter, const float* gradient,
                  float* exp_avg, float* exp_avg_sq) {
  update_as_asked<false>({numbers, count, parameter, gradient}, InFloat32{exp_avg, exp_avg_sq});
}
VERNIER_AVX2 void update_avx2(const AdamNumbers& numbers, std::int64_t count, float* parameter, const float* gradient,
                              float* exp_avg, float* exp_avg_sq) {
  update_as_asked<true>({numbers, count, parameter, gradient}, InFloat32{exp_avg, exp_avg_sq});
}

void update_bfloat16_plain(const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                           std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                           std::uint16_t* exp_avg_sq) {
  update_as_asked<false>({numbers, count, parameter, gradient}, InBfloat16{exp_avg, exp_avg_sq, noise, place});
}
VERNIER_AVX2 void update_bfloat16_avx2(const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                                       std::int64_t count, float* parameter, const float* gradient,
                                       std::uint16_t* exp_avg, std::uint16_t* exp_avg_sq) {
  update_as_asked<true>({numbers, count, parameter, gradient}, InBfloat16{exp_avg, exp_avg_sq, noise, place});
}

template <decltype(AdamKernels::update) update>
void update_codes(const AdamNumbers& numbers, CodedRun run) {
  constexpr auto block = BlockQuantisation::block;
  const auto &with_sign = BlockQuantisation::of(true).kernel(), &without = BlockQuantisation::of(false).kernel();
  for (; run.count > 0; run = after_block(run, block)) {
    const auto size = std::min(run.count, block);
    float mean[block], square[block];
    with_sign.unpack(run.exp_avg, run.largest_avg, size, mean);
    without.unpack(run.exp_avg_sq, run.largest_sq, size, square);
    update(numbers, size, run.parameter, run.gradient, mean, square);
    with_sign.pack(mean, size, run.exp_avg, run.largest_avg);
    without.pack(square, size, run.exp_avg_sq, run.largest_sq);
  }
}

constexpr AdamKernels plain_kernels = {update_plain, update_bfloat16_plain, update_codes<update_plain>},
                      avx2_kernels = {update_avx2, update_bfloat16_avx2, update_codes<update_avx2>};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::plain, plain_kernels, AdamKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, avx2_kernels, AdamKernels)

AdamNumbers adam_numbers(const AdamOptions& options, double lr, double step, float grad_scale) {
  auto numbers = numbers_of(options, lr, step, grad_scale);
  numbers.l2 = static_cast<float>(options.weight_decay);
  return numbers;
}

AdamNumbers adam_numbers(const AdamWOptions& options, double lr, double step, float grad_scale) {
  auto numbers = numbers_of(options, lr, step, grad_scale);
  const double decay = options.weight_decay;
  numbers.decay = static_cast<float>(has(Instructions::avx2) ? std::fma(-lr, decay, 1.0) : 1 - lr * decay);
  return numbers;
}

}  // namespace vernier
