// The kernels of optimizers for AVX-512. Compiled with vectorisation, and without the compiler's own choice of fused
// multiplications (CMakeLists.txt).
#include <algorithm>
#include <array>
#include <bit>

#include "adam_kernel.h"
#include "block_kernel.h"
#include "optim/block_quantisation.h"

// From here on everything is compiled for AVX-512.
#include "base/simd_avx512.h"

namespace vernier {

namespace {

// A table of eight, twice.
VERNIER_INLINE __m512 table(const std::array<float, 8>& numbers) {
  return _mm512_broadcast_f32x8(_mm256_load_ps(numbers.data()));
}

struct PackLines {
  __m512 begin, slope, base, end;
  explicit PackLines(const DecadeTables& all)
      : begin(table(all.begin)), slope(table(all.slope)), base(table(all.base)), end(table(all.end)) {}
};
// In the order in which numbers_of() chooses.
struct UnpackLines {
  __m512 first, unit, rest;
  UnpackLines(const DecadeTables& all, bool is_signed)
      : first(ordered(all.first, is_signed)),
        unit(ordered(all.unit, is_signed)),
        rest(ordered(all.unit_rest, is_signed)) {}

 private:
  static __m512 ordered(const std::array<float, 8>& numbers, bool is_signed) {
    // Signed ones are chosen by the zeros before the first bit of n, 24 to 32.
    const __m512i zeros = _mm512_setr_epi32(7, 0, 0, 0, 0, 0, 0, 0, 7, 6, 5, 4, 3, 2, 1, 0);
    return is_signed ? _mm512_permutexvar_ps(zeros, table(numbers)) : table(numbers);
  }
};

// Codes from the middle on, for numbers up to `most`. The lower half of an element of `doubt` becomes smaller the
// nearer a number is to the border of a code.
template <bool is_signed>
VERNIER_INLINE __m512i codes_of(const PackLines& lines, const float* from, __m512 most, __m512 inverse,
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
VERNIER_INLINE __m512 numbers_of(const UnpackLines& lines, const std::uint8_t* codes) {
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

// Equal BlockKernel's plain_pack() and plain_unpack().
template <bool is_signed>
void pack_block(const BlockKernel& kernel, const float* from, std::int64_t size, float most, std::uint8_t* codes) {
  const PackLines lines(kernel.lines());
  const __m512i limit = _mm512_set1_epi16(static_cast<short>(2 * doubtful + 1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i middle = _mm512_set1_epi16(is_signed ? 127 : 0);
  std::int64_t i = 0;
  if (most >= 0x1p-75F && most <= 0x1p125F) {  // no remainder underflows
    const __m512 divisor = _mm512_set1_ps(most), inverse = _mm512_set1_ps(1 / most);
    for (; i + 64 <= size; i += 64) {
      __m512i doubt = _mm512_set1_epi32(-1);
      const __m512i a = codes_of<is_signed>(lines, from + i, divisor, inverse, doubt);
      const __m512i b = codes_of<is_signed>(lines, from + i + 16, divisor, inverse, doubt);
      const __m512i c = codes_of<is_signed>(lines, from + i + 32, divisor, inverse, doubt);
      const __m512i d = codes_of<is_signed>(lines, from + i + 48, divisor, inverse, doubt);
      const __m512i ab = _mm512_add_epi16(_mm512_packs_epi32(a, b), middle);
      const __m512i cd = _mm512_add_epi16(_mm512_packs_epi32(c, d), middle);
      _mm512_storeu_si512(codes + i, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd)));
      constexpr __mmask32 lower_halves = 0x55555555;
      if (_mm512_mask_cmplt_epu16_mask(lower_halves, doubt, limit) != 0) {
        kernel.plain_pack(from + i, 64, most, codes + i);
      }
    }
  }
  kernel.plain_pack(from + i, size - i, most, codes + i);
}

template <bool is_signed>
void unpack_block(const BlockKernel& kernel, const std::uint8_t* codes, float most, std::int64_t size, float* to) {
  const UnpackLines lines(kernel.lines(), is_signed);
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    _mm512_storeu_ps(to + i, _mm512_mul_ps(numbers_of<is_signed>(lines, codes + i), _mm512_set1_ps(most)));
  }
  kernel.plain_unpack(codes + i, most, size - i, to + i);
}
void pack(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes, float* largest) {
  for (std::int64_t start = 0; start < count; start += codes_in_block, ++largest) {
    const auto size = std::min(codes_in_block, count - start);
    *largest = vernier::largest_of(from + start, size);
    kernel.is_signed() ? pack_block<true>(kernel, from + start, size, *largest, codes + start)
                       : pack_block<false>(kernel, from + start, size, *largest, codes + start);
  }
}
void unpack(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) {
  for (std::int64_t start = 0; start < count; start += codes_in_block, ++largest) {
    const auto size = std::min(codes_in_block, count - start);
    kernel.is_signed() ? unpack_block<true>(kernel, codes + start, *largest, size, to + start)
                       : unpack_block<false>(kernel, codes + start, *largest, size, to + start);
  }
}

// Sixteen elements of Adam or AdamW without L2 and maximize. Equals update() of adam_kernel.cpp.
struct AdamStep {
  Numbers share, beta2, square_share, correction, inverse, decay, step_size, eps;
  bool starts_at_mean;
  explicit AdamStep(const AdamNumbers& n)
      : share(filled(n.mean_share < 0.5F ? n.mean_share : n.mean_share - 1)),
        beta2(filled(n.beta2)),
        square_share(filled(n.square_share)),
        correction(filled(n.correction)),
        inverse(filled(1 / n.correction)),
        decay(filled(n.decay)),
        step_size(filled(n.step_size)),
        eps(filled(n.eps)),
        starts_at_mean(n.mean_share < 0.5F) {}

  VERNIER_INLINE void take(Numbers g, Numbers& mean, Numbers& square, float* parameter) const {
    const __m512i infinity_stays = _mm512_set1_epi32(5 << 20);  // a second operand of +inf gives +inf
    mean = fused(share, g - mean, starts_at_mean ? mean : g);
    square = fused(g, square_share * g, square * beta2);
    const Numbers root = _mm512_sqrt_ps(square), near = root * inverse;
    const Numbers exact = fused(_mm512_fnmadd_ps(near, correction, root), inverse, near);
    const Numbers corrected = _mm512_fixupimm_ps(exact, near, infinity_stays, 0) + eps;
    store(load(parameter, all) * decay - step_size * mean / corrected, parameter, all);
  }
};
bool is_taken(const AdamNumbers& numbers) {
  return numbers.sign == 1 && numbers.l2 == 0;
}

VERNIER_INLINE __m512i mixed(__m512i x) {
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)),
                         _mm512_set1_epi32(static_cast<int>(CountedNoise::a)));
  x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 13)),
                         _mm512_set1_epi32(static_cast<int>(CountedNoise::b)));
  return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

VERNIER_INLINE void store_rounded(__m512 number, __m512i noise, std::uint16_t* to) {
  const __mmask16 is_nan = _mm512_cmp_ps_mask(number, number, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_mov_epi32(_mm512_castps_si512(number), is_nan, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, noise), 16)));
}

// The first lines; returns how many elements. GCC takes 256-bit vectors for update_bfloat16_avx2(), whatever it is
// compiled for.
template <bool divides>
std::int64_t update_lines(const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                          std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                          std::uint16_t* exp_avg_sq) {
  const AdamStep step(numbers);
  const Numbers scale = filled(numbers.grad_scale);
  const __m512i own = _mm512_set1_epi32(static_cast<int>(noise.place()));
  const __m512i now = _mm512_set1_epi32(static_cast<int>(noise.now()));
  __m512i places = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(place)),
                                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const auto averages = [](const std::uint16_t* from) { return reinterpret_cast<const c10::BFloat16*>(from); };
  std::int64_t i = 0;
  for (; i + line <= count; i += line) {
    __builtin_prefetch(gradient + i + ahead);
    __builtin_prefetch(parameter + i + ahead, 1);
    __builtin_prefetch(exp_avg + i + ahead, 1);
    __builtin_prefetch(exp_avg_sq + i + ahead, 1);
    Numbers g = load(gradient + i, all), mean = load(averages(exp_avg + i), all),
            square = load(averages(exp_avg_sq + i), all);
    if constexpr (divides) g = g / scale;
    step.take(g, mean, square, parameter + i);
    const __m512i word = mixed(_mm512_add_epi32(mixed(_mm512_xor_si512(places, own)), now));
    store_rounded(mean, _mm512_and_si512(word, _mm512_set1_epi32(0xffff)), exp_avg + i);
    store_rounded(square, _mm512_srli_epi32(word, 16), exp_avg_sq + i);
    places = _mm512_add_epi32(places, _mm512_set1_epi32(line));
  }
  return i;
}

void update_bfloat16(const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place, std::int64_t count,
                     float* parameter, const float* gradient, std::uint16_t* exp_avg, std::uint16_t* exp_avg_sq) {
  std::int64_t done = 0;
  if (is_taken(numbers)) {
    const auto lines = numbers.grad_scale == 1 ? update_lines<false> : update_lines<true>;
    done = lines(numbers, noise, place, count, parameter, gradient, exp_avg, exp_avg_sq);
  }
  kernels_for<Instructions::avx2, AdamKernels>().update_bfloat16(
      numbers, noise, place + static_cast<std::uint32_t>(done), count - done, parameter + done, gradient + done,
      exp_avg + done, exp_avg_sq + done);
}

constexpr std::int64_t block = BlockQuantisation::block;
static_assert(block == codes_in_block);

VERNIER_INLINE float largest_of(__m512i bits) {
  return std::bit_cast<float>(_mm512_reduce_max_epu32(bits) & magnitude_bits);
}

// A whole block, with the gradient as it is.
void update_block(const AdamNumbers& numbers, const CodedRun& run) {
  const auto &with_sign = BlockQuantisation::of(true).kernel(), &without = BlockQuantisation::of(false).kernel();
  const UnpackLines mean_lines(with_sign.lines(), true), square_lines(without.lines(), false);
  const AdamStep step(numbers);
  const Numbers most_mean = filled(*run.largest_avg), most_square = filled(*run.largest_sq);
  const __m512i magnitude = _mm512_set1_epi32(magnitude_bits);
  __m512i largest_mean = _mm512_setzero_si512(), largest_square = _mm512_setzero_si512();
  alignas(64) float means[block], squares[block];
  for (std::int64_t i = 0; i < block; i += lanes) {
    __builtin_prefetch(run.gradient + i + ahead);
    __builtin_prefetch(run.parameter + i + ahead, 1);
    if (i % 64 == 0) {
      __builtin_prefetch(run.exp_avg + i + ahead, 1);
      __builtin_prefetch(run.exp_avg_sq + i + ahead, 1);
    }
    Numbers mean = numbers_of<true>(mean_lines, run.exp_avg + i) * most_mean;
    Numbers square = numbers_of<false>(square_lines, run.exp_avg_sq + i) * most_square;
    step.take(load(run.gradient + i, all), mean, square, run.parameter + i);
    store(mean, means + i, all);
    store(square, squares + i, all);
    // The bits of magnitudes are ordered as they are, and those of nan come last.
    largest_mean = _mm512_max_epi32(largest_mean, _mm512_and_si512(_mm512_castps_si512(mean), magnitude));
    largest_square = _mm512_max_epu32(largest_square, _mm512_castps_si512(square));  // no sign but a nan's
  }
  *run.largest_avg = largest_of(largest_mean);
  *run.largest_sq = largest_of(largest_square);
  pack_block<true>(with_sign, means, block, *run.largest_avg, run.exp_avg);
  pack_block<false>(without, squares, block, *run.largest_sq, run.exp_avg_sq);
}

void update_codes(const AdamNumbers& numbers, CodedRun run) {
  if (is_taken(numbers) && numbers.grad_scale == 1) {
    for (; run.count >= block; run = after_block(run, block)) update_block(numbers, run);
  }
  kernels_for<Instructions::avx2, AdamKernels>().update_codes(numbers, run);
}

void update(const AdamNumbers& numbers, std::int64_t count, float* parameter, const float* gradient, float* exp_avg,
            float* exp_avg_sq) {
  kernels_for<Instructions::avx2, AdamKernels>().update(numbers, count, parameter, gradient, exp_avg, exp_avg_sq);
}

constexpr AdamKernels adam_kernels = {update, update_bfloat16, update_codes};
constexpr CodeKernels code_kernels = {pack, unpack};

}  // namespace

VERNIER_DEFINE_KERNELS(instructions, adam_kernels, AdamKernels)
VERNIER_DEFINE_KERNELS(instructions, code_kernels, CodeKernels)

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
