// fp8 numbers for training: the formats E4M3 (maximum 448) and E5M2 (maximum 57344), and scales. A scale maps the
// largest magnitude of a tensor to the maximum of its format. In any loop:
//
//   using namespace vernier;
//   auto scale = float8_scale(float8_amax(x), torch::kFloat8_e4m3fn);
//   auto q = float8_quantize(x, scale, torch::kFloat8_e4m3fn);  // one byte for each number
//   auto y = q.dequantize();                                    // x up to rounding
//
// float8_linear.h has a layer that computes in fp8. All functions work on any device and thread. None of them is
// differentiable.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>

namespace vernier {

// The number of rows and columns of a matrix that share a scale; 0 means all. Blocks at the edges may be smaller.
struct ScaleBlock {
  std::int64_t rows = 0, columns = 0;
  bool operator==(const ScaleBlock&) const = default;
};
inline constexpr ScaleBlock per_tensor{0, 0}, per_row{1, 0}, per_column{0, 1};
inline constexpr ScaleBlock per_1x128{1, 128}, per_128x1{128, 1}, per_128x128{128, 128};

// Returns the maximum of torch::kFloat8_e4m3fn (448) or torch::kFloat8_e5m2 (57344). Throws Error for other dtypes.
VERNIER_API double float8_max(torch::ScalarType format);

// Converts numbers of either format to float32, which represents all of them exactly.
VERNIER_API torch::Tensor from_float8(const torch::Tensor& values);

// Returns the largest magnitude of each block in float32: 0-dim for per_tensor, else a matrix with one element for each
// block. It is NaN if the block contains NaN, and 0 if the block is empty. For per_tensor x has any shape. Otherwise it
// must be a matrix; Error is thrown if it is not.
VERNIER_API torch::Tensor float8_amax(const torch::Tensor& x, ScaleBlock block = per_tensor);

// Returns maximum / 2^margin / amax in float32, with the shape of amax. The scale is 1 if amax is 0, inf or NaN, and
// the largest float32 if the quotient overflows. power_of_two: the scale is rounded down to a power of two. Source:
// Transformer Engine, compute_scale_from_amax. torchao gives the same for amax >= 1e-12.
VERNIER_API torch::Tensor float8_scale(const torch::Tensor& amax, torch::ScalarType format, double margin = 0,
                                       bool power_of_two = false);

// A quantized tensor: values = x * scale, rounded, so x ≈ values / scale.
struct VERNIER_API Float8Tensor {
  torch::Tensor values;  // in an fp8 format, with the shape of x
  torch::Tensor scale;   // float32, with the shape of float8_amax(x, block)
  ScaleBlock block;
  torch::Tensor inverse = {};  // 1 / scale of per_tensor, where it is at hand

  // Returns values * (1 / scale) in float32, as the matrix units of a GPU apply the scale.
  torch::Tensor dequantize() const;
  Float8Tensor t() const;  // the transpose of a matrix; it shares the memory
};

// Rounds x * scale in float32 to the nearest numbers of the format, ties to even. Values beyond the maximum, inf
// included, become the maximum. NaN stays NaN. (LibTorch's own cast does not saturate: it makes NaN from 1000 in E4M3.)
// scale: the result of float8_scale, with the shape of float8_amax(x, block).
VERNIER_API Float8Tensor float8_quantize(const torch::Tensor& x, const torch::Tensor& scale, torch::ScalarType format,
                                         ScaleBlock block = per_tensor);

// The largest magnitudes of the last updates, for delayed scales: an update's scale comes from the updates before it.
// Source: Transformer Engine's DelayedScaling. One thread at a time.
class VERNIER_API AmaxHistory {
 public:
  // columns: tensors that have a history. most_recent: the newest magnitude counts, not the largest.
  AmaxHistory(std::int64_t updates, std::int64_t columns, bool most_recent);

  // Adds a magnitude of the update in work, 0-dim.
  void record(std::int64_t column, const torch::Tensor& largest);
  // Ends an update. Returns for each column the magnitude that counts, and whether a new scale comes from it. None does
  // from an inf, a NaN, or a tensor that the update did not use, which keeps its history. NaN is never the largest.
  struct Counted {
    torch::Tensor largest, makes_scale;
  };
  Counted end_update();

  // [updates, columns], which it shares. Row 0 belongs to the update in work, and the last row is the newest finished
  // one, as Transformer Engine has it.
  const torch::Tensor& tensor() const { return history_; }
  void load(const torch::Tensor& saved);  // copies; throws Error for another shape
  void to(torch::Device device) { history_ = history_.to(device); }

 private:
  torch::Tensor history_;
  bool most_recent_;
};

}  // namespace vernier
