// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
// Intrinsics of AVX-512 do what simd_avx2.h could not do as fast: they transpose blocks and lay out pairs of bfloat16.
#include "attention_kernel.h"

#include <type_traits>

#include "base/simd_avx512.h"

namespace vernier {

namespace {

constexpr std::int64_t block = attention_block;

// Sixteen rows of 32 bits become sixteen columns.
VERNIER_INLINE void transpose(__m512i (&rows)[lanes]) {
  __m512i t[lanes];
#pragma GCC unroll 8
  for (int i = 0; i < lanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < lanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // the four quarters of a register are four columns apart
    const __m512i a = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88),
                  b = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xDD);
    const __m512i c = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88),
                  d = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xDD);
    t[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(a, c, 0xDD);
    t[4 + i] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) rows[i] = t[i];
}

// Calls put(column, row, 16 words of that column from that row on) for a block of [64, width] words of 32 bits.
template <class Put>
VERNIER_INLINE void each_column(const void* from, std::int64_t width, const Put& put) {
  const auto* words = static_cast<const std::uint32_t*>(from);
  for (std::int64_t column = 0; column < width; column += lanes) {
    const __mmask16 which = first(width - column);
    for (std::int64_t row = 0; row < block; row += lanes) {
      __m512i part[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) part[i] = _mm512_maskz_loadu_epi32(which, words + (row + i) * width + column);
      transpose(part);
      for (std::int64_t i = 0; i < std::min(lanes, width - column); ++i) put(column + i, row, part[i]);
    }
  }
}
struct PutWords {
  std::uint32_t* to;
  VERNIER_INLINE void operator()(std::int64_t column, std::int64_t row, __m512i words) const {
    _mm512_storeu_si512(to + column * block + row, words);
  }
};
struct PutHalves {  // puts two columns into each word
  std::uint16_t* to;
  VERNIER_INLINE void operator()(std::int64_t column, std::int64_t row, __m512i words) const {
    auto* const place = to + 2 * column * block + row;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), _mm512_cvtepi32_epi16(words));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place + block), _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
  }
};

VERNIER_INLINE __m256i rounded(__m512 value) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
}
// Two rows of a right-hand factor.
VERNIER_INLINE __m512i in_turn(__m256i upper, __m256i lower) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(upper), _mm512_slli_epi32(_mm512_cvtepu16_epi32(lower), 16));
}
VERNIER_INLINE void store_right(__m512 upper, __m512 lower, float* to, std::int64_t row, std::int64_t width,
                                std::int64_t column) {
  _mm512_storeu_ps(to + row * width + column, upper);
  _mm512_storeu_ps(to + (row + 1) * width + column, lower);
}
VERNIER_INLINE void store_right(__m512 upper, __m512 lower, c10::BFloat16* to, std::int64_t row, std::int64_t width,
                                std::int64_t column) {
  _mm512_storeu_si512(to + row * width + 2 * column, in_turn(rounded(upper), rounded(lower)));
}

// The number of keys that any of 16 queries sees.
VERNIER_INLINE std::int64_t seen(const ScoreRule& rule, std::int64_t query) {
  return std::clamp<std::int64_t>(query + lanes + rule.diagonal, 0, rule.keys);
}
// The scores of a key that one of them sees, as they go into the softmax, less `base`.
VERNIER_INLINE Numbers score(const ScoreRule& rule, const float* scores, std::int64_t key, std::int64_t query,
                             Numbers base) {
  const std::int64_t place = key * block + query;
  const Numbers scale = filled(rule.scale), raw = load(scores + place, all);
  const Numbers at =
      rule.mask != nullptr ? fused(raw, scale, load(rule.mask + place, all)) - base : _mm512_fmsub_ps(raw, scale, base);
  const std::int64_t blind = key - rule.diagonal - query;  // so many of the queries do not see it
  return blind <= 0 ? at : _mm512_mask_mov_ps(at, first(blind), filled(-infinity));
}

// The plain loop: to[row][column] = row < rows && column < columns ? from[row][column] : 0.
template <class Element, class Product>
void take_rows(const Element* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::int64_t width,
               Product* to) {
  for (std::int64_t row = 0; row < block; ++row, from += stride, to += width) {
    const std::int64_t there = row < rows ? columns : 0;
    for (std::int64_t column = 0; column < width; column += lanes) {
      const Which in = first(std::max<std::int64_t>(there - column, 0)), out = first(width - column);
      if constexpr (std::is_same_v<Product, float>) {
        _mm512_mask_storeu_ps(to + column, out, load(from + column, in));
      } else {
        static_assert(std::is_same_v<Element, Product>);
        _mm256_mask_storeu_epi16(to + column, out, _mm256_maskz_loadu_epi16(in, from + column));
      }
    }
  }
}

// The plain loop: to[column][row] = from[row][column].
void transpose_left(const float* from, std::int64_t width, float* to) {
  each_column(from, width, PutWords{reinterpret_cast<std::uint32_t*>(to)});
}
void transpose_left(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  each_column(from, width / 2, PutHalves{reinterpret_cast<std::uint16_t*>(to)});
}
// The same for float. For bfloat16: to[column / 2][2 * row + column % 2] = from[row][column].
void transpose_right(const float* from, std::int64_t width, float* to) {
  transpose_left(from, width, to);
}
void transpose_right(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  each_column(from, width / 2, PutWords{reinterpret_cast<std::uint32_t*>(to)});
}

const float* right(const float* from, std::int64_t, float*) {
  return from;
}
// The plain loop: to[row / 2][2 * column + row % 2] = from[row][column].
const c10::BFloat16* right(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  for (std::int64_t row = 0; row < block; row += 2) {
    for (std::int64_t column = 0; column < width; column += lanes) {
      const Which which = first(width - column);
      const auto* const place = from + row * width + column;
      _mm512_mask_storeu_epi32(
          to + row * width + 2 * column, which,
          in_turn(_mm256_maskz_loadu_epi16(which, place), _mm256_maskz_loadu_epi16(which, place + width)));
    }
  }
  return to;
}

// The plain loop, for each query, with a score of -inf for a key that it does not see:
//   most = max(largest, scores + mask); fade = exp(largest - most); sum *= fade; output *= fade; largest = most;
//   weights[key] = exp(scores[key] * scale + mask[key] - most); sum += weights[key].
template <class Product>
void soften(const ScoreRule& rule, const float* scores, float* largest, float* sum, std::int64_t width, float* output,
            Product* weights) {
  const Numbers nothing = filled(-infinity);
  for (std::int64_t query = 0; query < block; query += lanes) {
    const Numbers before = load(largest + query, all);
    const std::int64_t keys = seen(rule, query);
    Numbers most = before;
    for (std::int64_t key = 0; key < keys; ++key) {
      most = larger(most, score(rule, scores, key, query, filled(0)));
    }
    // A query that has seen nothing so far keeps weights of 0.
    const Numbers base = _mm512_mask_mov_ps(most, _mm512_cmp_ps_mask(most, nothing, _CMP_EQ_OQ), filled(0));
    const Numbers faded = exponential(before - base);
    Numbers totals[2] = {filled(0), filled(0)};
    for (std::int64_t key = 0; key < block; key += 2) {
      Numbers pair[2] = {filled(0), filled(0)};
      for (int i = 0; i < 2 && key + i < keys; ++i) {
        pair[i] = exponential(score(rule, scores, key + i, query, base));
        totals[i] = totals[i] + pair[i];
      }
      store_right(pair[0], pair[1], weights, key, block, query);
    }
    const Numbers total = fused(load(sum + query, all), faded, totals[0] + totals[1]);
    store(most, largest + query, all);
    store(total, sum + query, all);
    for (std::int64_t i = 0; i < width; ++i) {
      float* const place = output + i * block + query;
      store(load(place, all) * faded, place, all);
    }
  }
}

// The plain loop, for each key that a query sees; 0 for the others:
//   weights[key] = exp(scores[key] * scale + mask[key] - log_sum - log_rest);
//   left[key] = right[key] = weights[key] * (slopes[key] - dots).
template <class Product>
void differentiate(const ScoreRule& rule, const float* scores, const float* slopes, const float* log_sum,
                   const float* log_rest, const float* dots, Product* weights, Product* left, Product* right) {
  for (std::int64_t key = 0; key < block; key += 2) {
    for (std::int64_t query = 0; query < block; query += lanes) {
      const Numbers base = load(log_sum + query, all), rest = load(log_rest + query, all);
      const Numbers dot = load(dots + query, all);
      // A query that does not exist has a weight of 0 for a key that is NaN, too.
      const Which there = first(std::max<std::int64_t>(rule.queries - query, 0));
      Numbers slope[2];
      for (int i = 0; i < 2; ++i) {
        const std::int64_t place = (key + i) * block + query;
        Numbers weight = filled(0);
        slope[i] = weight;
        if (key + i < seen(rule, query)) {
          weight = only(there, exponential(score(rule, scores, key + i, query, base) - rest));
          slope[i] = _mm512_maskz_mul_ps(there, weight, load(slopes + place, all) - dot);
        }
        if constexpr (std::is_same_v<Product, float>) {
          store(weight, weights + place, all);
          store(slope[i], left + place, all);
        } else {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + place), rounded(weight));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(left + place), rounded(slope[i]));
        }
      }
      if constexpr (!std::is_same_v<Product, float>) store_right(slope[0], slope[1], right, key, block, query);
    }
  }
}

// The plain loop: to[row] += a[row][column] * b[row][column], from 0 on.
template <class Element>
void row_dots(const Element* a, std::int64_t stride_a, const Element* b, std::int64_t stride_b, std::int64_t rows,
              std::int64_t columns, float* to) {
  for (std::int64_t row = 0; row < block; ++row, a += stride_a, b += stride_b) {
    Numbers sum = filled(0);
    for (std::int64_t column = 0; column < columns && row < rows; column += lanes) {
      const Which which = first(columns - column);
      sum = fused(load(a + column, which), load(b + column, which), sum);
    }
    to[row] = sum_of(sum);
  }
}

// The plain loop: to[row][column] = from[row][column] * scale.
template <class Element>
void give_rows(const float* from, std::int64_t width, float scale, std::int64_t rows, std::int64_t columns, Element* to,
               std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, from += width, to += stride) {
    for (std::int64_t column = 0; column < columns; column += lanes) {
      const Which which = first(columns - column);
      store(load(from + column, which) * filled(scale), to + column, which);
    }
  }
}

// The plain loop: to[row][column] = from[column][row] * factors[row].
template <class Element>
void give_columns(const float* from, const float* factors, std::int64_t rows, std::int64_t columns, Element* to,
                  std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; row += lanes) {
    const Numbers factor = load(factors + row, all);
    for (std::int64_t column = 0; column < columns; column += lanes) {
      const std::int64_t count = std::min(lanes, columns - column);
      __m512i part[lanes];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < lanes; ++i) {
        const float* const place = from + (column + std::min(i, count - 1)) * block + row;
        part[i] = _mm512_castps_si512(load(place, all) * factor);
      }
      transpose(part);
      for (std::int64_t i = 0; i < std::min(lanes, rows - row); ++i) {
        store(_mm512_castsi512_ps(part[i]), to + (row + i) * stride + column, first(count));
      }
    }
  }
}

template <class Element, class Product>
constexpr AttentionKernels<Element, Product> attention_kernels = {take_rows<Element, Product>,
                                                                  transpose_left,
                                                                  transpose_right,
                                                                  right,
                                                                  soften<Product>,
                                                                  differentiate<Product>,
                                                                  row_dots<Element>,
                                                                  give_rows<Element>,
                                                                  give_columns<Element>};

}  // namespace

#define VERNIER_ATTENTION(set, E, P) \
  VERNIER_DEFINE_KERNELS(Instructions::set, (attention_kernels<E, P>), AttentionKernels<E, P>)
VERNIER_ATTENTION(avx512, float, float)
VERNIER_ATTENTION(avx512, c10::BFloat16, float)
VERNIER_ATTENTION(avx512, c10::Half, float)
VERNIER_ATTENTION(avx512_bf16, c10::BFloat16, c10::BFloat16)

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
