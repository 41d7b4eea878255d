// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "adam_codes.h"

#include <algorithm>
#include <bit>

#include "block_vectors.h"
#include "optim/block_quantisation.h"

namespace vernier {

namespace {

constexpr std::int64_t block = BlockQuantisation::block;
static_assert(block == codes_in_block);

void update_block(Rounding rounding, const AdamNumbers& numbers, const CodedRun& run, std::int64_t size) {
  const auto &with_sign = BlockQuantisation::of(true).kernel(), &without = BlockQuantisation::of(false).kernel();
  float mean[block], square[block];
  with_sign.unpack(run.exp_avg, run.largest_avg, size, mean);
  without.unpack(run.exp_avg_sq, run.largest_sq, size, square);
  adam_update(rounding, numbers, size, run.parameter, run.gradient, mean, square);
  with_sign.pack(mean, size, run.exp_avg, run.largest_avg);
  without.pack(square, size, run.exp_avg_sq, run.largest_sq);
}

#if defined(__x86_64__)
VERNIER_AVX512 inline float largest_of(__m512i bits) {
  return std::bit_cast<float>(_mm512_reduce_max_epu32(bits) & magnitude_bits);
}

// adam_update() for a whole block, with what is the most frequent: the gradient as it is, no L2.
VERNIER_AVX512 void update_wide_block(const AdamNumbers& numbers, const CodedRun& run) {
  const auto &with_sign = BlockQuantisation::of(true).kernel(), &without = BlockQuantisation::of(false).kernel();
  const UnpackLines mean_lines(with_sign.lines(), true), square_lines(without.lines(), false);
  const bool starts_at_mean = numbers.mean_share < 0.5F;
  const __m512 share = _mm512_set1_ps(starts_at_mean ? numbers.mean_share : numbers.mean_share - 1);
  const __m512 beta2 = _mm512_set1_ps(numbers.beta2);
  const __m512 square_share = _mm512_set1_ps(numbers.square_share), eps = _mm512_set1_ps(numbers.eps);
  const __m512 correction = _mm512_set1_ps(numbers.correction), inverse = _mm512_set1_ps(1 / numbers.correction);
  const __m512 decay = _mm512_set1_ps(numbers.decay), step_size = _mm512_set1_ps(numbers.step_size);
  const __m512 most_mean = _mm512_set1_ps(*run.largest_avg), most_square = _mm512_set1_ps(*run.largest_sq);
  const __m512i infinity_stays = _mm512_set1_epi32(5 << 20);  // where the second is +inf, so is the result
  const __m512i magnitude = _mm512_set1_epi32(magnitude_bits);
  __m512i largest_mean = _mm512_setzero_si512(), largest_square = _mm512_setzero_si512();
  alignas(64) float means[block], squares[block];
  for (std::int64_t i = 0; i < block; i += 16) {
    constexpr std::int64_t ahead = 1024;  // a processor's own prefetching stops at each 4 KB page
    __builtin_prefetch(run.gradient + i + ahead);
    __builtin_prefetch(run.parameter + i + ahead, 1);
    if (i % 64 == 0) {
      __builtin_prefetch(run.exp_avg + i + ahead, 1);
      __builtin_prefetch(run.exp_avg_sq + i + ahead, 1);
    }
    const __m512 g = _mm512_loadu_ps(run.gradient + i);
    const __m512 before = _mm512_mul_ps(numbers_of<true>(mean_lines, run.exp_avg + i), most_mean);
    const __m512 mean = _mm512_fmadd_ps(share, _mm512_sub_ps(g, before), starts_at_mean ? before : g);
    const __m512 faded =
        _mm512_mul_ps(_mm512_mul_ps(numbers_of<false>(square_lines, run.exp_avg_sq + i), most_square), beta2);
    const __m512 square = _mm512_fmadd_ps(g, _mm512_mul_ps(square_share, g), faded);
    const __m512 root = _mm512_sqrt_ps(square), near = _mm512_mul_ps(root, inverse);
    const __m512 exact = _mm512_fmadd_ps(_mm512_fnmadd_ps(near, correction, root), inverse, near);
    const __m512 finite = _mm512_fixupimm_ps(exact, near, infinity_stays, 0);
    const __m512 corrected = _mm512_add_ps(finite, eps);
    const __m512 weight = _mm512_mul_ps(_mm512_loadu_ps(run.parameter + i), decay);
    const __m512 step = _mm512_div_ps(_mm512_mul_ps(step_size, mean), corrected);
    _mm512_storeu_ps(run.parameter + i, _mm512_sub_ps(weight, step));
    _mm512_store_ps(means + i, mean);
    _mm512_store_ps(squares + i, square);
    // The bits of magnitudes are ordered as they are, and those of nan come last.
    largest_mean = _mm512_max_epi32(largest_mean, _mm512_and_si512(_mm512_castps_si512(mean), magnitude));
    largest_square = _mm512_max_epu32(largest_square, _mm512_castps_si512(square));  // no sign but a nan's
  }
  *run.largest_avg = largest_of(largest_mean);
  *run.largest_sq = largest_of(largest_square);
  with_sign.pack_block(means, block, *run.largest_avg, run.exp_avg);
  without.pack_block(squares, block, *run.largest_sq, run.exp_avg_sq);
}
#endif

}  // namespace

void adam_update_codes(Rounding rounding, const AdamNumbers& numbers, CodedRun run) {
  const auto go_on = [&] {
    run.count -= block;
    run.parameter += block;
    run.gradient += block;
    run.exp_avg += block;
    run.exp_avg_sq += block;
    ++run.largest_avg;
    ++run.largest_sq;
  };
#if defined(__x86_64__)
  if (has_wide_blocks() && rounding == Rounding::once && numbers.grad_scale == 1 && numbers.sign == 1 &&
      numbers.l2 == 0) {
    for (; run.count >= block; go_on()) update_wide_block(numbers, run);
  }
#endif
  for (; run.count > 0; go_on()) update_block(rounding, numbers, run, std::min(run.count, block));
}

}  // namespace vernier
