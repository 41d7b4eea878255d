// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "adam_kernel.h"

#include <vernier/optim.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "block_vectors.h"

namespace vernier {

namespace {

constexpr int line = 16;              // elements of a cache line
constexpr std::int64_t ahead = 1024;  // that are fetched early: a processor's own prefetching stops at each 4 KB page

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

// A multiplication by 1 changes nothing, so decay and sign need no branch; an addition of 0 may (-0), nor is a division
// free.
template <bool fuses, bool divides, bool adds_l2, class Averages>
inline __attribute__((always_inline)) void update(const Arguments& arguments, const Averages averages) {
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
inline __attribute__((always_inline)) void update_as_asked(const Arguments& arguments, const Averages& averages) {
  const bool divides = arguments.numbers.grad_scale != 1, adds_l2 = arguments.numbers.l2 != 0;
  if (divides && adds_l2) return update<fuses, true, true>(arguments, averages);
  if (divides) return update<fuses, true, false>(arguments, averages);
  if (adds_l2) return update<fuses, false, true>(arguments, averages);
  update<fuses, false, false>(arguments, averages);
}

#if defined(__x86_64__)
#define VERNIER_AVX2 __attribute__((target("avx2,fma")))
#else
#define VERNIER_AVX2
#endif
template <class Averages>
VERNIER_AVX2 void update_with_avx2(const Arguments& arguments, const Averages& averages) {
  update_as_asked<true>(arguments, averages);
}
template <class Averages>
void update_on(Rounding rounding, const Arguments& arguments, const Averages& averages) {
  if (rounding == Rounding::once) return update_with_avx2(arguments, averages);
  update_as_asked<false>(arguments, averages);
}

#if defined(__x86_64__)
VERNIER_AVX512 inline __m512i mixed(__m512i x) {
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)),
                         _mm512_set1_epi32(static_cast<int>(CountedNoise::a)));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)),
                         _mm512_set1_epi32(static_cast<int>(CountedNoise::b)));
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

VERNIER_AVX512 inline __m512 wide(const std::uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

VERNIER_AVX512 inline void store_rounded(__m512 number, __m512i noise, std::uint16_t* to) {
  const __mmask16 is_nan = _mm512_cmp_ps_mask(number, number, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(number), is_nan, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, noise), 16)));
}

// The bits of update_with_avx2<InBfloat16> for the first lines, without L2 and maximize; returns how many elements.
// GCC takes 256-bit vectors for that one, whatever it is compiled for.
template <bool divides>
VERNIER_AVX512 std::int64_t update_wide(const Arguments& arguments, const InBfloat16& averages) {
  const AdamNumbers& n = arguments.numbers;
  const bool starts_at_mean = n.mean_share < 0.5F;
  const __m512 share = _mm512_set1_ps(starts_at_mean ? n.mean_share : n.mean_share - 1);
  const __m512 beta2 = _mm512_set1_ps(n.beta2), square_share = _mm512_set1_ps(n.square_share);
  const __m512 correction = _mm512_set1_ps(n.correction), inverse = _mm512_set1_ps(1 / n.correction);
  const __m512 decay = _mm512_set1_ps(n.decay), step_size = _mm512_set1_ps(n.step_size), eps = _mm512_set1_ps(n.eps);
  const __m512 scale = _mm512_set1_ps(n.grad_scale);
  const __m512i infinity_stays = _mm512_set1_epi32(5 << 20);  // where the second is +inf, so is the result
  const __m512i own = _mm512_set1_epi32(static_cast<int>(averages.noise.place()));
  const __m512i now = _mm512_set1_epi32(static_cast<int>(averages.noise.now()));
  __m512i places = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(averages.place)),
                                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  std::int64_t i = 0;
  for (; i + line <= arguments.count; i += line) {
    __builtin_prefetch(arguments.gradient + i + ahead);
    __builtin_prefetch(arguments.parameter + i + ahead, 1);
    __builtin_prefetch(averages.exp_avg + i + ahead, 1);
    __builtin_prefetch(averages.exp_avg_sq + i + ahead, 1);
    __m512 g = _mm512_loadu_ps(arguments.gradient + i);
    if constexpr (divides) g = _mm512_div_ps(g, scale);
    const __m512 before = wide(averages.exp_avg + i), faded = _mm512_mul_ps(wide(averages.exp_avg_sq + i), beta2);
    const __m512 mean = _mm512_fmadd_ps(share, _mm512_sub_ps(g, before), starts_at_mean ? before : g);
    const __m512 square = _mm512_fmadd_ps(g, _mm512_mul_ps(square_share, g), faded);
    const __m512 root = _mm512_sqrt_ps(square), near = _mm512_mul_ps(root, inverse);
    const __m512 exact = _mm512_fmadd_ps(_mm512_fnmadd_ps(near, correction, root), inverse, near);
    const __m512 corrected = _mm512_add_ps(_mm512_fixupimm_ps(exact, near, infinity_stays, 0), eps);
    const __m512 weight = _mm512_mul_ps(_mm512_loadu_ps(arguments.parameter + i), decay);
    _mm512_storeu_ps(arguments.parameter + i,
                     _mm512_sub_ps(weight, _mm512_div_ps(_mm512_mul_ps(step_size, mean), corrected)));
    const __m512i word = mixed(_mm512_add_epi32(mixed(_mm512_xor_si512(places, own)), now));
    store_rounded(mean, _mm512_and_si512(word, _mm512_set1_epi32(0xffff)), averages.exp_avg + i);
    store_rounded(square, _mm512_srli_epi32(word, 16), averages.exp_avg_sq + i);
    places = _mm512_add_epi32(places, _mm512_set1_epi32(line));
  }
  return i;
}
#endif

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
  update_on(rounding, {numbers, count, parameter, gradient}, InFloat32{exp_avg, exp_avg_sq});
}

void adam_update_bfloat16(Rounding rounding, const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                          std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                          std::uint16_t* exp_avg_sq) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_wide_blocks() && rounding == Rounding::once && numbers.sign == 1 && numbers.l2 == 0) {
    const Arguments all{numbers, count, parameter, gradient};
    const InBfloat16 averages{exp_avg, exp_avg_sq, noise, place};
    done = numbers.grad_scale == 1 ? update_wide<false>(all, averages) : update_wide<true>(all, averages);
  }
#endif
  update_on(rounding, {numbers, count - done, parameter + done, gradient + done},
            InBfloat16{exp_avg + done, exp_avg_sq + done, noise, place + static_cast<std::uint32_t>(done)});
}

}  // namespace vernier
