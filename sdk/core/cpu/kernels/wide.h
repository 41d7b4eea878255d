// Sixteen floats at a time. What follows this header in a file is compiled for AVX-512, so include it last, and call
// nothing of it on other processors. For clang, the file ends with `#pragma clang attribute pop`. AVX512-BF16 is used
// by its own instructions only.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/intrinsics.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#endif

#define VERNIER_INLINE inline __attribute__((always_inline))

namespace vernier {

namespace {

using Numbers = __m512;
using Which = __mmask16;  // of the lanes
constexpr std::int64_t lanes = 16;
constexpr float infinity = std::numeric_limits<float>::infinity();

VERNIER_INLINE __mmask16 first(std::int64_t count) {
  return count >= lanes ? __mmask16{0xFFFF} : static_cast<__mmask16>((1U << count) - 1);
}

VERNIER_INLINE __m512 load(const float* from, __mmask16 which) {
  return _mm512_maskz_loadu_ps(which, from);
}
VERNIER_INLINE __m512 load(const c10::BFloat16* from, __mmask16 which) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, from)), 16));
}
VERNIER_INLINE __m512 load(const c10::Half* from, __mmask16 which) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, from));
}
VERNIER_INLINE void store(__m512 value, float* to, __mmask16 which) {
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

// e^x for x up to 88, with the polynomial of Cephes' expf; below -87 it is 0, and NaN stays. Smaller numbers would slow
// the processor down.
VERNIER_INLINE __m512 exponential(__m512 x) {
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0F), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375F), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(counts, p, n);
}

}  // namespace

}  // namespace vernier
