// Sixteen floats at a time, in the terms that all kernels share; simd_avx2.h has eight in the same terms. What follows
// this header in a file is compiled for AVX-512, so include it last, and call nothing of it on other processors. For
// clang, the file ends with `#pragma clang attribute pop`. AVX512-BF16 is used by its own instructions only.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/intrinsics.h"
#include "base/kernels.h"
#include "base/targets.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,fma")
#endif

namespace vernier {

namespace {

using Numbers = __m512;
using Which = __mmask16;  // one bit for each lane
constexpr Which all = 0xFFFF;
constexpr std::int64_t lanes = 16;
constexpr auto instructions = Instructions::avx512;
constexpr float infinity = std::numeric_limits<float>::infinity();

VERNIER_INLINE __mmask16 first(std::int64_t count) {
  return count >= lanes ? all : static_cast<__mmask16>((1U << count) - 1);
}

// True if the compiler knows that these are all lanes: a load without a mask can be part of another instruction.
VERNIER_INLINE bool is_all(Which which) {
  return __builtin_constant_p(which == all) && which == all;
}

VERNIER_INLINE __m512 load(const float* from, __mmask16 which) {
  if (is_all(which)) return _mm512_loadu_ps(from);
  return _mm512_maskz_loadu_ps(which, from);
}
VERNIER_INLINE __m256i load_bits(const void* from, __mmask16 which) {
  return is_all(which) ? _mm256_loadu_si256(static_cast<const __m256i*>(from)) : _mm256_maskz_loadu_epi16(which, from);
}
VERNIER_INLINE __m512 load(const c10::BFloat16* from, __mmask16 which) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits(from, which)), 16));
}
VERNIER_INLINE __m512 load(const c10::Half* from, __mmask16 which) {
  return _mm512_cvtph_ps(load_bits(from, which));
}
VERNIER_INLINE void store(__m512 value, float* to, __mmask16 which) {
  if (is_all(which)) return _mm512_storeu_ps(to, value);
  _mm512_mask_storeu_ps(to, which, value);
}
// To the nearest, ties to even; NaN as c10::BFloat16 writes it.
VERNIER_INLINE void store(__m512 value, c10::BFloat16* to, __mmask16 which) {
  const __m512i bits = _mm512_castps_si512(value),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  _mm256_mask_storeu_epi16(to, which,
                           _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7FC0))));
}
VERNIER_INLINE void store(__m512 value, c10::Half* to, __mmask16 which) {
  _mm256_mask_storeu_epi16(to, which, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

VERNIER_INLINE __m512 filled(float value) {
  return _mm512_set1_ps(value);
}
VERNIER_INLINE __m512 fused(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
// 0 in the other lanes.
VERNIER_INLINE __m512 only(__mmask16 which, __m512 value) {
  return _mm512_maskz_mov_ps(which, value);
}
// a in the other lanes, and b where one is not a number.
VERNIER_INLINE __m512 larger(__mmask16 which, __m512 a, __m512 b) {
  return _mm512_mask_max_ps(a, which, a, b);
}
VERNIER_INLINE float sum_of(__m512 value) {
  return _mm512_reduce_add_ps(value);
}
// Sums in float64, two lanes of float32 in each of 8.
using Doubles = __m512d;
VERNIER_INLINE Doubles wider_sum(Doubles sum, __m512 more) {
  return _mm512_add_pd(sum, _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(more)),
                                          _mm512_cvtps_pd(_mm512_extractf32x8_ps(more, 1))));
}
VERNIER_INLINE Doubles no_doubles() {
  return _mm512_setzero_pd();
}
VERNIER_INLINE double sum_of(Doubles value) {
  return _mm512_reduce_add_pd(value);
}
VERNIER_INLINE float largest_of(__m512 value) {
  return _mm512_reduce_max_ps(value);
}

// The larger or smaller number, and b where one is not a number.
VERNIER_INLINE __m512 larger(__m512 a, __m512 b) {
  return _mm512_max_ps(a, b);
}
VERNIER_INLINE __m512 smaller(__m512 a, __m512 b) {
  return _mm512_min_ps(a, b);
}
VERNIER_INLINE __m512 magnitude(__m512 value) {
  return _mm512_abs_ps(value);
}
// if_above where a > b, otherwise if_not: also where one is not a number.
VERNIER_INLINE __m512 where_above(__m512 a, __m512 b, __m512 if_above, __m512 if_not) {
  return _mm512_mask_mov_ps(if_not, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), if_above);
}

}  // namespace

}  // namespace vernier

#include "simd_shared.h"

namespace vernier {

namespace {

// e^x for x up to 88; below -87 it is 0, and NaN stays. Smaller numbers would slow the processor down.
VERNIER_INLINE __m512 exponential(__m512 x) {
  const __mmask16 counts = _mm512_cmp_ps_mask(x, filled(-87), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(x * filled(inverse_ln2), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_ps(counts, exponential_rest(x, n), n);
}
VERNIER_INLINE __m512 exponential_of_activation(__m512 x) {
  return exponential(x);
}

}  // namespace

}  // namespace vernier
