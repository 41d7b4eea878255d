// Computes one tile of a matrix product on one thread, as a unit of vernier/lab/emulated_matmul.h does.
#pragma once

#include <vernier/lab/emulated_matmul.h>

#include <cstdint>

namespace vernier {

struct AccumulatorRule {
  MatrixUnit unit;
  bool is_fast;  // float32 has all products, and int32 the sum of a step, or with is_wide of fast_products of them
  bool is_wide;
};

constexpr std::int64_t fast_products = 8;

constexpr std::int64_t tile_rows = 32, tile_columns = 64;

// Exponents of products are sums of two, so that these stay beyond those of numbers in any sum.
constexpr std::int16_t exponent_of_zero = -8000, exponent_of_non_finite = 16000;

struct ProductTile {
  const float* a;                   // [rows, k]
  const std::int16_t* a_exponents;  // [rows, k]
  const float* b;                   // [k, tile_columns], filled up with zeros
  const std::int16_t* b_exponents;
  const float *a_scales, *b_scales;  // the scales of blocks, of the shapes of a and b; nullptr: none
  std::int64_t rows, columns, k;     // rows, columns: the result's; at most tile_rows and tile_columns
  float* y;
  std::int64_t y_stride;
};

struct AccumulatorKernels {
  void (*multiply_tile)(const AccumulatorRule& rule, const ProductTile& tile);
};

}  // namespace vernier
