// Codes of blocks and numbers, sixteen at a time with AVX-512. For files that are compiled with vectorisation.
#pragma once

#include "base/intrinsics.h"
#include "block_kernel.h"

#if defined(__x86_64__)
#define VERNIER_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,fma")))

namespace vernier {

namespace {

// A table of eight, twice.
VERNIER_AVX512 inline __m512 table(const std::array<float, 8>& numbers) {
  return _mm512_broadcast_f32x8(_mm256_load_ps(numbers.data()));
}

struct PackLines {
  __m512 begin, slope, base, end;
  VERNIER_AVX512 explicit PackLines(const DecadeTables& all)
      : begin(table(all.begin)), slope(table(all.slope)), base(table(all.base)), end(table(all.end)) {}
};
// In the order in which numbers_of() chooses.
struct UnpackLines {
  __m512 first, unit, rest;
  VERNIER_AVX512 UnpackLines(const DecadeTables& all, bool is_signed)
      : first(ordered(all.first, is_signed)),
        unit(ordered(all.unit, is_signed)),
        rest(ordered(all.unit_rest, is_signed)) {}

 private:
  VERNIER_AVX512 static __m512 ordered(const std::array<float, 8>& numbers, bool is_signed) {
    // Signed ones are chosen by the zeros before the first bit of n, 24 to 32.
    const __m512i zeros = _mm512_setr_epi32(7, 0, 0, 0, 0, 0, 0, 0, 7, 6, 5, 4, 3, 2, 1, 0);
    return is_signed ? _mm512_permutexvar_ps(zeros, table(numbers)) : table(numbers);
  }
};

// Codes from the middle on, for numbers up to `most`. The lower half of an element of `doubt` becomes smaller the
// nearer a number is to the border of a code.
template <bool is_signed>
VERNIER_AVX512 inline __m512i codes_of(const PackLines& lines, const float* from, __m512 most, __m512 inverse,
                                       __m512i& doubt) {
  const __m512 number = _mm512_loadu_ps(from), zero = _mm512_setzero_ps();
  const __m512 magnitude = is_signed ? _mm512_abs_ps(number) : _mm512_max_ps(number, zero);
  // magnitude / most, exactly (Markstein, IBM J. Res. Dev. 34(1), 1990)
  const __m512 near = _mm512_mul_ps(magnitude, inverse);
  const __m512 quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(near, most, magnitude), inverse, near);
  const __m512i bits = _mm512_castps_si512(quotient), one = _mm512_set1_epi32(1);
  const __mmask16 is_negative = is_signed ? _mm512_cmp_ps_mask(number, zero, _CMP_LT_OQ) : __mmask16{0};
  // The upper half of a float's bits is nearly its logarithm: this decade or the next, in the low three bits.
  const __m512i above = _mm512_subs_epu16(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(13278));
  const __m512i decade = _mm512_mulhi_epu16(above, _mm512_set1_epi32(157));
  // A magnitude at which two decades meet belongs to the one below if the number is negative.
  const __m512i compared = is_signed ? _mm512_mask_sub_epi32(bits, is_negative, bits, one) : bits;
  const __m512i begin = _mm512_castps_si512(_mm512_permutexvar_ps(decade, lines.begin));
  const __m512i line = _mm512_mask_sub_epi32(decade, _mm512_cmpgt_epi32_mask(begin, compared), decade, one);
  const __m512 at =
      _mm512_fmadd_ps(_mm512_permutexvar_ps(line, lines.slope), quotient, _mm512_permutexvar_ps(line, lines.base));
  const __m512i place = _mm512_cvtps_epi32(_mm512_min_ps(at, _mm512_permutexvar_ps(line, lines.end)));
  doubt = _mm512_min_epu16(doubt, place);
  const __m512i n = _mm512_srli_epi32(place, 16);
  if constexpr (is_signed) return _mm512_mask_sub_epi32(n, is_negative, _mm512_setzero_si512(), n);
  return _mm512_min_epu32(n, _mm512_castps_si512(magnitude));  // only 0 becomes 0
}

// The numbers of sixteen codes, as shares of the largest one.
template <bool is_signed>
VERNIER_AVX512 inline __m512 numbers_of(const UnpackLines& lines, const std::uint8_t* codes) {
  __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  if constexpr (is_signed) code = _mm512_sub_epi32(code, _mm512_set1_epi32(127));
  const __m512i whole = is_signed ? _mm512_abs_epi32(code) : code;
  const __m512 n = _mm512_cvtepi32_ps(whole);
  const __m512i line = is_signed ? _mm512_lzcnt_epi32(whole)
                                 : _mm512_srli_epi32(_mm512_castps_si512(_mm512_add_ps(n, _mm512_set1_ps(1))), 23);
  const __m512 units = _mm512_fmadd_ps(n, _mm512_set1_ps(18), _mm512_permutexvar_ps(line, lines.first));
  const __m512 number = _mm512_fmadd_ps(units, _mm512_permutexvar_ps(line, lines.unit),
                                        _mm512_mul_ps(units, _mm512_permutexvar_ps(line, lines.rest)));
  if constexpr (!is_signed) return number;
  constexpr int first_with_sign_of_second = 0x78;  // a ^ (b & c)
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(number), code,
                                                       _mm512_set1_epi32(~magnitude_bits), first_with_sign_of_second));
}

}  // namespace

}  // namespace vernier
#endif
