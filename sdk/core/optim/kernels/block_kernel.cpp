// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "block_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/intrinsics.h"
#include "base/kernels.h"

namespace vernier {

namespace {

constexpr std::array<double, 7> tops = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};  // upper ends of the decades

// Divides each decade from 1e-7 on into equal intervals and takes their midpoints. Equal to bitsandbytes and torchao,
// except for the last bit, which is processor-dependent there.
std::array<float, 256> dynamic_numbers(bool is_signed) {
  std::vector<float> numbers{0.0F, 1.0F};
  int parts = is_signed ? 1 : 2;
  for (const double top : tops) {
    for (int i = 0; i < parts; ++i) {
      const auto middle = static_cast<float>(top * (0.1 + 0.9 * (i + 0.5) / parts));
      numbers.push_back(middle);
      if (is_signed) numbers.push_back(-middle);
    }
    parts *= 2;
  }
  std::array<float, 256> all;
  std::ranges::sort(numbers);
  std::ranges::copy(numbers, all.begin());
  return all;
}

}  // namespace

BlockKernel::BlockKernel(bool is_signed) : is_signed_(is_signed), numbers_(dynamic_numbers(is_signed)) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  starts_.front() = -infinity;
  starts_.back() = infinity;
  for (std::size_t i = 1; i < numbers_.size(); ++i) {
    starts_[i] = static_cast<float>((static_cast<double>(numbers_[i - 1]) + numbers_[i]) / 2);
  }
  if (!is_signed) starts_[1] = std::numeric_limits<float>::denorm_min();
  least_code_.resize(std::size_t{1} << (32 - dropped_bits));
  for (std::uint32_t i = 0; i < least_code_.size(); ++i) {
    const std::uint32_t first = i << dropped_bits, last = first + (1U << dropped_bits) - 1;
    const float least = std::bit_cast<float>(first >> 31 != 0 ? last : first);
    if (std::isnan(least)) continue;
    const auto next = std::upper_bound(starts_.begin(), starts_.end() - 1, least);
    least_code_[i] = static_cast<std::uint8_t>(next - starts_.begin() - 1);
  }
  make_lines();
}

std::uint8_t BlockKernel::code_of(float number) const {
  const auto code = least_code_[std::bit_cast<std::uint32_t>(number) >> dropped_bits];
  return static_cast<std::uint8_t>(code + (number >= starts_[code + std::size_t{1}] ? 1 : 0));
}

void BlockKernel::make_lines() {
  const std::size_t zero = is_signed_ ? 127 : 0, fewest = is_signed_ ? 1 : 2;
  const auto start = [&](double n) { return double{starts_[zero + static_cast<std::size_t>(n)]}; };
  for (std::size_t k = 0; k < 7; ++k) {
    const auto parts = static_cast<double>(fewest << k), n = is_signed_ ? parts : parts - 1;
    // Below the second decade there are two codes only.
    const double slope = k > 0 ? parts / (0.9 * tops[k]) : 0.75 / (start(n + parts) - start(double(fewest)));
    const double base = k > 0 ? n - 0.1 * tops[k] * slope : double(fewest) - slope * start(double(fewest));
    const double unit = tops[k] / (20 * parts);
    lines_.begin[k] = k > 0 ? static_cast<float>(start(n)) : 0;
    lines_.slope[k] = static_cast<float>(unit_of_code * slope);
    lines_.base[k] = static_cast<float>(unit_of_code * base + doubtful);
    lines_.end[k] = static_cast<float>(unit_of_code * (n + parts - 0.5));
    lines_.first[k] = static_cast<float>((is_signed_ ? 9 : 27) - 16 * parts);
    lines_.unit[k] = static_cast<float>(unit);
    lines_.unit_rest[k] = static_cast<float>(unit - lines_.unit[k]);
  }
  const double last = is_signed_ ? 128 : 255, unit = 1 / (18 * last);  // 1, and when decoding 0 too
  lines_.begin[7] = starts_[255];
  lines_.slope[7] = 0;
  lines_.base[7] = lines_.end[7] = static_cast<float>(unit_of_code * (last + 0.5));
  lines_.first[7] = 0;
  lines_.unit[7] = static_cast<float>(unit);
  lines_.unit_rest[7] = static_cast<float>(unit - lines_.unit[7]);
}

namespace {

// Calls body(start, size, largest of the block) for each block.
template <class Largest, class Body>
VERNIER_INLINE void each_block(std::int64_t count, Largest* largest, const Body& body) {
  for (std::int64_t start = 0; start < count; start += codes_in_block, ++largest) {
    body(start, std::min(codes_in_block, count - start), *largest);
  }
}

void pack_plain(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes, float* largest) {
  each_block(count, largest, [&](auto start, auto size, float& most) {
    most = largest_of(from + start, size);
    kernel.plain_pack(from + start, size, most, codes + start);
  });
}
void unpack_plain(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest, std::int64_t count,
                  float* to) {
  each_block(count, largest,
             [&](auto start, auto size, float most) { kernel.plain_unpack(codes + start, most, size, to + start); });
}

// Intrinsics here and in avx512.cpp: the two sets choose from tables, and take 16-bit halves, in ways of their own.
struct DecadeLines {
  __m256 begin, slope, base, end;
};

VERNIER_AVX2 inline __m256 pick(__m256 table, __m256i which) {
  return _mm256_permutevar8x32_ps(table, which);
}

// Returns the place among the codes from 0 up, times 2^16. less: -1 where a magnitude at which two decades meet belongs
// to the one below, otherwise 0.
VERNIER_AVX2 inline __m256i place(const DecadeLines& lines, __m256 number, __m256i less) {
  // The upper half of a float's bits is nearly its logarithm: this decade or the next, in the low three bits.
  const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(number), 16);
  const __m256i above = _mm256_subs_epu16(upper, _mm256_set1_epi32(13278));
  const __m256i decade = _mm256_mulhi_epu16(above, _mm256_set1_epi32(157));
  const __m256i begin = _mm256_castps_si256(pick(lines.begin, decade));
  const __m256i is_below = _mm256_cmpgt_epi32(begin, _mm256_add_epi32(_mm256_castps_si256(number), less));
  const __m256i line = _mm256_add_epi32(decade, is_below);
  const __m256 at = _mm256_fmadd_ps(pick(lines.slope, line), number, pick(lines.base, line));
  return _mm256_cvtps_epi32(_mm256_min_ps(at, pick(lines.end, line)));  // a decade's last code reaches into the next
}

template <bool is_signed>
VERNIER_AVX2 inline __m256i code(const DecadeLines& lines, const float* from, __m256 most, __m256 inverse,
                                 __m256i& doubt) {
  __m256 number = _mm256_loadu_ps(from), magnitude;
  if constexpr (is_signed) {
    magnitude = _mm256_and_ps(number, _mm256_castsi256_ps(_mm256_set1_epi32(magnitude_bits)));
  } else {
    magnitude = number = _mm256_max_ps(number, _mm256_setzero_ps());
  }
  const __m256i bits = _mm256_castps_si256(number);
  // magnitude / most, exactly (Markstein, IBM J. Res. Dev. 34(1), 1990)
  const __m256 near = _mm256_mul_ps(magnitude, inverse);
  const __m256 quotient = _mm256_fmadd_ps(_mm256_fnmadd_ps(near, most, magnitude), inverse, near);
  const __m256i less = is_signed ? _mm256_castps_si256(_mm256_cmp_ps(number, _mm256_setzero_ps(), _CMP_LT_OQ))
                                 : _mm256_setzero_si256();  // -0 is not a negative number
  const __m256i at = place(lines, quotient, less);
  doubt = _mm256_min_epu32(doubt, _mm256_slli_epi32(at, 16));
  const __m256i n = _mm256_srli_epi32(at, 16);
  if constexpr (is_signed) return _mm256_sign_epi32(n, bits);
  return _mm256_min_epu32(n, bits);  // only 0 becomes 0
}

template <bool is_signed>
VERNIER_AVX2 void pack_avx2(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes,
                            float* largest) {
  const DecadeLines lines{_mm256_load_ps(kernel.lines().begin.data()), _mm256_load_ps(kernel.lines().slope.data()),
                          _mm256_load_ps(kernel.lines().base.data()), _mm256_load_ps(kernel.lines().end.data())};
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::int64_t start = 0; start < count; start += codes_in_block, ++largest) {
    const auto size = std::min(codes_in_block, count - start);
    const float most = largest_of(from + start, size);
    *largest = most;
    std::int64_t i = 0;
    if (most >= 0x1p-75F && most <= 0x1p125F) {  // no remainder underflows
      const __m256 divisor = _mm256_set1_ps(most), inverse = _mm256_set1_ps(1 / most);
      for (; i + 32 <= size; i += 32) {
        const float* const here = from + start + i;
        __m256i doubt = _mm256_set1_epi32(-1);
        const __m256i a = code<is_signed>(lines, here, divisor, inverse, doubt);
        const __m256i b = code<is_signed>(lines, here + 8, divisor, inverse, doubt);
        const __m256i c = code<is_signed>(lines, here + 16, divisor, inverse, doubt);
        const __m256i d = code<is_signed>(lines, here + 24, divisor, inverse, doubt);
        __m256i ab = _mm256_packs_epi32(a, b), cd = _mm256_packs_epi32(c, d);
        if constexpr (is_signed) {
          ab = _mm256_add_epi16(ab, _mm256_set1_epi16(127));
          cd = _mm256_add_epi16(cd, _mm256_set1_epi16(127));
        }
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + start + i), bytes);
        // Near a border the plain way decides, for all 32.
        const __m256i limit = _mm256_set1_epi32(static_cast<int>(2 * doubtful + 1) << 16);
        const __m256i sure = _mm256_cmpeq_epi32(_mm256_max_epu32(doubt, limit), doubt);
        if (_mm256_movemask_epi8(sure) != -1) kernel.plain_pack(here, 32, most, codes + start + i);
      }
    }
    kernel.plain_pack(from + start + i, size - i, most, codes + start + i);
  }
}

template <bool is_signed>
VERNIER_AVX2 void unpack_avx2(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest,
                              std::int64_t count, float* to) {
  const __m256 first = _mm256_load_ps(kernel.lines().first.data()), unit = _mm256_load_ps(kernel.lines().unit.data()),
               rest = _mm256_load_ps(kernel.lines().unit_rest.data());
  for (std::int64_t start = 0; start < count; start += codes_in_block, ++largest) {
    const auto size = std::min(codes_in_block, count - start);
    const __m256 most = _mm256_set1_ps(*largest);
    std::int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
      __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + start + i)));
      __m256 sign, n, power;
      if constexpr (is_signed) {
        code = _mm256_sub_epi32(code, _mm256_set1_epi32(127));
        sign = _mm256_and_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(-0.0F));
        n = _mm256_cvtepi32_ps(_mm256_abs_epi32(code));
        power = _mm256_fmadd_ps(n, _mm256_set1_ps(2), _mm256_set1_ps(1));
      } else {
        n = _mm256_cvtepi32_ps(code);
        power = _mm256_add_ps(n, _mm256_set1_ps(1));
      }
      const __m256i line = _mm256_srli_epi32(_mm256_castps_si256(power), 23);
      const __m256 units = _mm256_fmadd_ps(n, _mm256_set1_ps(18), pick(first, line));
      __m256 number = _mm256_fmadd_ps(units, pick(unit, line), _mm256_mul_ps(units, pick(rest, line)));
      if constexpr (is_signed) number = _mm256_xor_ps(number, sign);
      _mm256_storeu_ps(to + start + i, _mm256_mul_ps(number, most));
    }
    kernel.plain_unpack(codes + start + i, *largest, size - i, to + start + i);
  }
}

void pack_avx2(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes, float* largest) {
  kernel.is_signed() ? pack_avx2<true>(kernel, from, count, codes, largest)
                     : pack_avx2<false>(kernel, from, count, codes, largest);
}
void unpack_avx2(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest, std::int64_t count,
                 float* to) {
  kernel.is_signed() ? unpack_avx2<true>(kernel, codes, largest, count, to)
                     : unpack_avx2<false>(kernel, codes, largest, count, to);
}

constexpr CodeKernels plain_kernels = {pack_plain, unpack_plain}, avx2_kernels = {pack_avx2, unpack_avx2};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::plain, plain_kernels, CodeKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, avx2_kernels, CodeKernels)

void BlockKernel::pack(const float* from, std::int64_t count, std::uint8_t* codes, float* largest) const {
  best_kernels<CodeKernels>()->pack(*this, from, count, codes, largest);
}

void BlockKernel::unpack(const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) const {
  best_kernels<CodeKernels>()->unpack(*this, codes, largest, count, to);
}

}  // namespace vernier
