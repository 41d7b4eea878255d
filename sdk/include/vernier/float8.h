// fp8 as training uses it: E4M3 (largest number 448) and E5M2 (57344), and scales that bring a tensor's largest
// magnitude to the largest number of its format. In any loop:
//
//   using namespace vernier;
//   auto scale = float8_scale(float8_amax(x), torch::kFloat8_e4m3fn);
//   auto q = float8_quantize(x, scale, torch::kFloat8_e4m3fn);  // one byte a number
//   auto y = q.dequantize();                                    // nearly x
//
// A layer that computes with them: float8_linear.h. All functions work on any device and thread, and are no part of a
// gradient.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>

namespace vernier {

// How many rows and columns of a matrix share a scale; 0: all of them. A block at an edge may be smaller.
struct ScaleBlock {
  std::int64_t rows = 0, columns = 0;
  bool operator==(const ScaleBlock&) const = default;
};
inline constexpr ScaleBlock per_tensor{0, 0}, per_row{1, 0}, per_column{0, 1};
inline constexpr ScaleBlock per_1x128{1, 128}, per_128x1{128, 1}, per_128x128{128, 128};

// The largest number: 448 of torch::kFloat8_e4m3fn, 57344 of torch::kFloat8_e5m2. Another format throws Error.
VERNIER_API double float8_max(torch::ScalarType format);

// Rounded to the nearest number of the format, ties to even; what lies beyond the largest number, inf too, becomes the
// largest; nan stays nan. (LibTorch's own cast does not saturate: 1000 in E4M3 is nan there.) Any shape.
VERNIER_API torch::Tensor to_float8(const torch::Tensor& x, torch::ScalarType format);

// The numbers of either format in float32, which holds them all.
VERNIER_API torch::Tensor from_float8(const torch::Tensor& values);

// The largest magnitude in each block, float32: 0-dim for per_tensor, else a matrix of one element a block. nan where
// the block holds one; 0 where it is empty. Any shape for per_tensor, else a matrix.
VERNIER_API torch::Tensor float8_amax(const torch::Tensor& x, ScaleBlock block = per_tensor);

// largest number / 2^margin / amax, in float32, of amax's shape. Where amax is 0, inf or nan it is 1; where the
// quotient is beyond float32 it is float32's largest. power_of_two: rounded down to one. All as in Transformer Engine
// (compute_scale_from_amax; torchao gives the same for amax >= 1e-12).
VERNIER_API torch::Tensor float8_scale(const torch::Tensor& amax, torch::ScalarType format, double margin = 0,
                                       bool power_of_two = false);

// A quantised tensor: values = to_float8(x * scale), and back x ≈ values / scale.
struct VERNIER_API Float8Tensor {
  torch::Tensor values;  // in its format, of x's shape
  torch::Tensor scale;   // float32, as float8_amax(x, block) is
  ScaleBlock block;

  // In float32: the values times 1 / scale, as matrix units on a GPU apply it.
  torch::Tensor dequantize() const;
  Float8Tensor t() const;  // of a matrix: its transpose, the same memory
};

// scale: of float8_scale, in the shape that float8_amax(x, block) has.
VERNIER_API Float8Tensor float8_quantize(const torch::Tensor& x, const torch::Tensor& scale, torch::ScalarType format,
                                         ScaleBlock block = per_tensor);

}  // namespace vernier
