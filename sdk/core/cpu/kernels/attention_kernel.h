// The computations of attention between its products of matrices, on blocks of 64 keys by 64 queries, with
// AVX-512. A block of scores is transposed: it has a row for each key and a column for each query. So sums and largest
// scores of a query are those of a column, and the weights are in place for the next product.
#pragma once

#include <cstdint>

namespace vernier {

constexpr std::int64_t attention_block = 64;

// Shared by all scores of a block.
struct ScoreRule {
  float scale;
  std::int64_t queries, keys;  // columns and rows that exist
  std::int64_t diagonal;       // query q sees the keys up to q + diagonal; 64: all of them
  const float* mask;           // added, [64, 64] as the scores; or none
};

// Element: float, c10::BFloat16 or c10::Half, of the tensors. Product: float or c10::BFloat16, what is multiplied.
// A block of rows is [64, width], dense, and filled up with zeros. "Right" is the layout of a right-hand factor:
// float's is plain, bfloat16 has the elements of two rows in turn (VNNI).
template <class Element, class Product>
struct AttentionKernels {
  // Rows of a tensor, `stride` elements apart, to a block. columns: those that the tensor has, at most `width`.
  void (*take_rows)(const Element* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    std::int64_t width, Product* to);
  // [64, width] to [width, 64], the latter as a left-hand or as a right-hand factor.
  void (*transpose_left)(const Product* from, std::int64_t width, Product* to);
  void (*transpose_right)(const Product* from, std::int64_t width, Product* to);
  // A block as a right-hand factor. Float's is `from` itself.
  const Product* (*right)(const Product* from, std::int64_t width, Product* to);

  // One more block of keys: takes its scores into the running largest score and sum of each query, scales what was
  // added to `output` [width, 64] before, and writes the block's weights as a right-hand factor.
  void (*soften)(const ScoreRule& rule, const float* scores, float* largest, float* sum, std::int64_t width,
                 float* output, Product* weights);

  // The weights and the gradient of the scores, without `scale`, as left-hand factors; the latter as a right-hand
  // factor too, for bfloat16. slopes: the gradient of the weights. log_sum and dots: of each query. log_rest: added to
  // log_sum, where float32 does not hold the sum of the two.
  void (*differentiate)(const ScoreRule& rule, const float* scores, const float* slopes, const float* log_sum,
                        const float* log_rest, const float* dots, Product* weights, Product* left, Product* right);

  // The product of each row of a with that of b.
  void (*row_dots)(const Element* a, std::int64_t stride_a, const Element* b, std::int64_t stride_b, std::int64_t rows,
                   std::int64_t columns, float* to);

  // The first rows of [64, width] times `scale`; the first columns of [width, 64], each times a factor of its own.
  void (*give_rows)(const float* from, std::int64_t width, float scale, std::int64_t rows, std::int64_t columns,
                    Element* to, std::int64_t stride);
  void (*give_columns)(const float* from, const float* factors, std::int64_t rows, std::int64_t columns, Element* to,
                       std::int64_t stride);
};

}  // namespace vernier
