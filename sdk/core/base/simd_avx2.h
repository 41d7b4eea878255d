// Eight floats at a time, in the terms of simd_avx512.h. What follows this header in a file is compiled for AVX2, so
// include it last, and call nothing of it on other processors.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/intrinsics.h"
#include "base/kernels.h"
#include "base/targets.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

namespace vernier {

namespace {

using Numbers = __m256;
using Which = std::int64_t;  // so many lanes, the first ones
constexpr std::int64_t lanes = 8;
constexpr Which all = lanes;
constexpr auto instructions = Instructions::avx2;
constexpr float infinity = std::numeric_limits<float>::infinity();

VERNIER_INLINE Which first(std::int64_t count) {
  return std::min(count, lanes);
}
VERNIER_INLINE __m256i mask_of(Which which) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(which)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VERNIER_INLINE __m128i load_bits(const void* from, Which which) {
  if (which == lanes) return _mm_loadu_si128(static_cast<const __m128i*>(from));
  std::uint16_t bits[lanes] = {};
  std::memcpy(bits, from, static_cast<std::size_t>(which) * sizeof(*bits));
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits));
}
VERNIER_INLINE void store_bits(__m128i value, void* to, Which which) {
  if (which == lanes) return _mm_storeu_si128(static_cast<__m128i*>(to), value);
  std::uint16_t bits[lanes];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bits), value);
  std::memcpy(to, bits, static_cast<std::size_t>(which) * sizeof(*bits));
}

VERNIER_INLINE __m256 load(const float* from, Which which) {
  return which == lanes ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, mask_of(which));
}
VERNIER_INLINE __m256 load(const c10::BFloat16* from, Which which) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bits(from, which)), 16));
}
VERNIER_INLINE __m256 load(const c10::Half* from, Which which) {
  return _mm256_cvtph_ps(load_bits(from, which));
}
VERNIER_INLINE void store(__m256 value, float* to, Which which) {
  which == lanes ? _mm256_storeu_ps(to, value) : _mm256_maskstore_ps(to, mask_of(which), value);
}
// To the nearest, ties to even; NaN as c10::BFloat16 writes it.
VERNIER_INLINE void store(__m256 value, c10::BFloat16* to, Which which) {
  const __m256i bits = _mm256_castps_si256(value),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7FC0), is_nan);
  store_bits(_mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1)), to, which);
}
VERNIER_INLINE void store(__m256 value, c10::Half* to, Which which) {
  store_bits(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), to, which);
}

VERNIER_INLINE __m256 filled(float value) {
  return _mm256_set1_ps(value);
}
VERNIER_INLINE __m256 fused(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
VERNIER_INLINE __m256 only(Which which, __m256 value) {
  return which == lanes ? value : _mm256_and_ps(value, _mm256_castsi256_ps(mask_of(which)));
}
VERNIER_INLINE __m256 larger(Which which, __m256 a, __m256 b) {
  const __m256 most = _mm256_max_ps(a, b);
  return which == lanes ? most : _mm256_blendv_ps(a, most, _mm256_castsi256_ps(mask_of(which)));
}
VERNIER_INLINE float sum_of(__m256 value) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Sums in float64, two lanes of float32 in each of 4.
using Doubles = __m256d;
VERNIER_INLINE Doubles wider_sum(Doubles sum, __m256 more) {
  return _mm256_add_pd(sum, _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(more)),
                                          _mm256_cvtps_pd(_mm256_extractf128_ps(more, 1))));
}
VERNIER_INLINE Doubles no_doubles() {
  return _mm256_setzero_pd();
}
VERNIER_INLINE double sum_of(Doubles value) {
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(value), _mm256_extractf128_pd(value, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
VERNIER_INLINE float largest_of(__m256 value) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VERNIER_INLINE __m256 larger(__m256 a, __m256 b) {
  return _mm256_max_ps(a, b);
}
VERNIER_INLINE __m256 smaller(__m256 a, __m256 b) {
  return _mm256_min_ps(a, b);
}
VERNIER_INLINE __m256 magnitude(__m256 value) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), value);
}
VERNIER_INLINE __m256 where_above(__m256 a, __m256 b, __m256 if_above, __m256 if_not) {
  return _mm256_blendv_ps(if_not, if_above, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

}  // namespace

}  // namespace vernier

#include "simd_shared.h"

namespace vernier {

namespace {

// value * 2^n. n_bits: n, or any number with the same last nine bits.
VERNIER_INLINE __m256 times_power(__m256 value, __m256i n_bits) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n_bits, _mm256_set1_epi32(127)), 23);
  return value * _mm256_castsi256_ps(power);
}

// e^x as in simd_avx512.h; from 89 on it is infinity.
VERNIER_INLINE __m256 exponential(__m256 x) {
  x = _mm256_min_ps(filled(89), x);  // NaN stays
  const __m256 counts = _mm256_cmp_ps(x, filled(-87), _CMP_NLT_UQ);
  const __m256 n = _mm256_round_ps(x * filled(inverse_ln2), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm256_and_ps(counts, times_power(exponential_rest(x, n), _mm256_cvtps_epi32(n)));
}
// e^x that rounds x / ln 2 once. An x outside of -87 to 88 counts as the nearer end.
VERNIER_INLINE __m256 exponential_of_activation(__m256 x) {
  x = smaller(filled(88), larger(filled(-87), x));
  const __m256 shift = filled(12582912);  // 1.5 * 2^23: an addition rounds to an integer, which is in the low bits
  const __m256 shifted = fused(x, filled(inverse_ln2), shift);
  return times_power(exponential_rest(x, shifted - shift), _mm256_castps_si256(shifted));
}

}  // namespace

}  // namespace vernier
