// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "attention_kernel.h"

#include <type_traits>

#include "wide.h"

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
struct PutHalves {  // of two columns
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
VERNIER_INLINE __m512 score(const ScoreRule& rule, const float* scores, std::int64_t key, std::int64_t query,
                            __m512 base) {
  const std::int64_t place = key * block + query;
  const __m512 scale = _mm512_set1_ps(rule.scale), raw = _mm512_loadu_ps(scores + place);
  const __m512 at = rule.mask != nullptr
                        ? _mm512_sub_ps(_mm512_fmadd_ps(raw, scale, _mm512_loadu_ps(rule.mask + place)), base)
                        : _mm512_fmsub_ps(raw, scale, base);
  const std::int64_t blind = key - rule.diagonal - query;  // so many of the queries do not see it
  return blind <= 0 ? at : _mm512_mask_mov_ps(at, first(blind), _mm512_set1_ps(-infinity));
}

}  // namespace

template <class Element, class Product>
void take_rows(const Element* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, std::int64_t width,
               Product* to) {
  for (std::int64_t row = 0; row < block; ++row, from += stride, to += width) {
    const std::int64_t there = row < rows ? columns : 0;
    for (std::int64_t column = 0; column < width; column += lanes) {
      const __mmask16 in = first(std::max<std::int64_t>(there - column, 0)), out = first(width - column);
      if constexpr (std::is_same_v<Product, float>) {
        _mm512_mask_storeu_ps(to + column, out, load(from + column, in));
      } else {
        static_assert(std::is_same_v<Element, Product>);
        _mm256_mask_storeu_epi16(to + column, out, _mm256_maskz_loadu_epi16(in, from + column));
      }
    }
  }
}

template <>
void transpose_left(const float* from, std::int64_t width, float* to) {
  each_column(from, width, PutWords{reinterpret_cast<std::uint32_t*>(to)});
}
template <>
void transpose_left(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  each_column(from, width / 2, PutHalves{reinterpret_cast<std::uint16_t*>(to)});
}
template <>
void transpose_right(const float* from, std::int64_t width, float* to) {
  transpose_left(from, width, to);
}
template <>
void transpose_right(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  each_column(from, width / 2, PutWords{reinterpret_cast<std::uint32_t*>(to)});
}

template <>
const float* right(const float* from, std::int64_t, float*) {
  return from;
}
template <>
const c10::BFloat16* right(const c10::BFloat16* from, std::int64_t width, c10::BFloat16* to) {
  for (std::int64_t row = 0; row < block; row += 2) {
    for (std::int64_t column = 0; column < width; column += lanes) {
      const __mmask16 which = first(width - column);
      const auto* const place = from + row * width + column;
      _mm512_mask_storeu_epi32(
          to + row * width + 2 * column, which,
          in_turn(_mm256_maskz_loadu_epi16(which, place), _mm256_maskz_loadu_epi16(which, place + width)));
    }
  }
  return to;
}

template <class Product>
void soften(const ScoreRule& rule, const float* scores, float* largest, float* sum, std::int64_t width, float* output,
            Product* weights) {
  const __m512 nothing = _mm512_set1_ps(-infinity);
  for (std::int64_t query = 0; query < block; query += lanes) {
    const __m512 before = _mm512_loadu_ps(largest + query);
    const std::int64_t keys = seen(rule, query);
    __m512 most = before;
    for (std::int64_t key = 0; key < keys; ++key) {
      most = _mm512_max_ps(most, score(rule, scores, key, query, _mm512_setzero_ps()));
    }
    // A query that has seen nothing so far keeps weights of 0.
    const __m512 base = _mm512_mask_mov_ps(most, _mm512_cmp_ps_mask(most, nothing, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __m512 faded = exponential(_mm512_sub_ps(before, base));
    __m512 totals[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (std::int64_t key = 0; key < block; key += 2) {
      __m512 pair[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int i = 0; i < 2 && key + i < keys; ++i) {
        pair[i] = exponential(score(rule, scores, key + i, query, base));
        totals[i] = _mm512_add_ps(totals[i], pair[i]);
      }
      store_right(pair[0], pair[1], weights, key, block, query);
    }
    const __m512 total = _mm512_fmadd_ps(_mm512_loadu_ps(sum + query), faded, _mm512_add_ps(totals[0], totals[1]));
    _mm512_storeu_ps(largest + query, most);
    _mm512_storeu_ps(sum + query, total);
    for (std::int64_t i = 0; i < width; ++i) {
      float* const place = output + i * block + query;
      _mm512_storeu_ps(place, _mm512_mul_ps(_mm512_loadu_ps(place), faded));
    }
  }
}

template <class Product>
void differentiate(const ScoreRule& rule, const float* scores, const float* slopes, const float* log_sum,
                   const float* log_rest, const float* dots, Product* weights, Product* left, Product* right) {
  for (std::int64_t key = 0; key < block; key += 2) {
    for (std::int64_t query = 0; query < block; query += lanes) {
      const __m512 base = _mm512_loadu_ps(log_sum + query), rest = _mm512_loadu_ps(log_rest + query);
      const __m512 dot = _mm512_loadu_ps(dots + query);
      // A query that does not exist has a weight of 0 for a key that is NaN, too.
      const __mmask16 there = first(std::max<std::int64_t>(rule.queries - query, 0));
      __m512 slope[2];
      for (int i = 0; i < 2; ++i) {
        const std::int64_t place = (key + i) * block + query;
        __m512 weight = _mm512_setzero_ps();
        slope[i] = weight;
        if (key + i < seen(rule, query)) {
          weight = only(there, exponential(_mm512_sub_ps(score(rule, scores, key + i, query, base), rest)));
          slope[i] = _mm512_maskz_mul_ps(there, weight, _mm512_sub_ps(_mm512_loadu_ps(slopes + place), dot));
        }
        if constexpr (std::is_same_v<Product, float>) {
          _mm512_storeu_ps(weights + place, weight);
          _mm512_storeu_ps(left + place, slope[i]);
        } else {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + place), rounded(weight));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(left + place), rounded(slope[i]));
        }
      }
      if constexpr (!std::is_same_v<Product, float>) store_right(slope[0], slope[1], right, key, block, query);
    }
  }
}

template <class Element>
void row_dots(const Element* a, std::int64_t stride_a, const Element* b, std::int64_t stride_b, std::int64_t rows,
              std::int64_t columns, float* to) {
  for (std::int64_t row = 0; row < block; ++row, a += stride_a, b += stride_b) {
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t column = 0; column < columns && row < rows; column += lanes) {
      const __mmask16 which = first(columns - column);
      sum = _mm512_fmadd_ps(load(a + column, which), load(b + column, which), sum);
    }
    to[row] = _mm512_reduce_add_ps(sum);
  }
}

template <class Element>
void give_rows(const float* from, std::int64_t width, float scale, std::int64_t rows, std::int64_t columns, Element* to,
               std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, from += width, to += stride) {
    for (std::int64_t column = 0; column < columns; column += lanes) {
      const __mmask16 which = first(columns - column);
      store(_mm512_mul_ps(load(from + column, which), _mm512_set1_ps(scale)), to + column, which);
    }
  }
}

template <class Element>
void give_columns(const float* from, const float* factors, std::int64_t rows, std::int64_t columns, Element* to,
                  std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; row += lanes) {
    const __m512 factor = _mm512_loadu_ps(factors + row);
    for (std::int64_t column = 0; column < columns; column += lanes) {
      const std::int64_t count = std::min(lanes, columns - column);
      __m512i part[lanes];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < lanes; ++i) {
        const float* const place = from + (column + std::min(i, count - 1)) * block + row;
        part[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(place), factor));
      }
      transpose(part);
      for (std::int64_t i = 0; i < std::min(lanes, rows - row); ++i) {
        store(_mm512_castsi512_ps(part[i]), to + (row + i) * stride + column, first(count));
      }
    }
  }
}

#define VERNIER_FOR_PRODUCT(P)                                                                                        \
  template void soften(const ScoreRule&, const float*, float*, float*, std::int64_t, float*, P*);                     \
  template void differentiate(const ScoreRule&, const float*, const float*, const float*, const float*, const float*, \
                              P*, P*, P*);
#define VERNIER_FOR_ELEMENT(E)                                                                                \
  template void take_rows(const E*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*);          \
  template void row_dots(const E*, std::int64_t, const E*, std::int64_t, std::int64_t, std::int64_t, float*); \
  template void give_rows(const float*, std::int64_t, float, std::int64_t, std::int64_t, E*, std::int64_t);   \
  template void give_columns(const float*, const float*, std::int64_t, std::int64_t, E*, std::int64_t);
VERNIER_FOR_PRODUCT(float)
VERNIER_FOR_PRODUCT(c10::BFloat16)
VERNIER_FOR_ELEMENT(float)
VERNIER_FOR_ELEMENT(c10::BFloat16)
VERNIER_FOR_ELEMENT(c10::Half)
template void take_rows(const c10::BFloat16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, c10::BFloat16*);

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
