// Softmax and cross entropy of rows whose logits are given in blocks of classes.
#pragma once

#include <ATen/core/Tensor.h>
#include <vernier/abi.h>

namespace vernier {

namespace gpu {
struct Library;
}

// float32, or float64 for float64: sums and slopes.
inline at::ScalarType wide_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}
// Returns what divides the weights of a mean over rows: their sum, and 1 where no row counts, so that slopes are 0, as
// PyTorch's.
inline at::Tensor divisor_of_mean(const at::Tensor& weights, const at::Tensor& counts) {
  return weights.sum().masked_fill(counts.logical_not().all(), 1);
}
// float64 [rows]. A row's loss is all * log of the sum of e^x - hit * x at the target - spread * the sum of all x, each
// times its class's weight.
struct LossFactors {
  at::Tensor hit, spread, all;

  // A power of two that brings the slopes to at most 4096: float16 then has their small ones too. 1 where the largest
  // factor is 0 or not finite.
  VERNIER_API at::Tensor slope_scale() const;
};

// First add() all blocks, then loss(), then slopes() of each. A row whose target is in no block has the loss NaN.
class VERNIER_API BlockedSoftmax {
 public:
  // library: CUDA kernels (gpu/gpu_library.h), or nullptr.
  BlockedSoftmax(const at::Tensor& target, LossFactors factors, const at::Tensor& class_weight, double smoothing,
                 std::int64_t classes, at::ScalarType dtype, const gpu::Library* library);

  // For a GPU: slopes() are multiplied by a number, float64 0-dim, and have the dtype of the logits.
  void scale_slopes(const at::Tensor& scale);

  // logits: [rows, some classes], contiguous; first: the number of the first of these classes. Columns beyond the last
  // class are left out.
  void add(const at::Tensor& logits, std::int64_t first);
  at::Tensor loss();  // the sum over the rows: 0-dim, float64
  // The dtype of slopes(). float16 has no room for slopes that are not scaled.
  at::ScalarType slope_dtype() const { return dtype_ == at::kHalf && !scale_.defined() ? at::kFloat : dtype_; }
  // Derivatives of the loss by these logits, 0 or left out beyond the last class. The CUDA kernels write them into the
  // memory of the logits.
  at::Tensor slopes(const at::Tensor& logits, std::int64_t first) const;

 private:
  std::int64_t columns_of(const at::Tensor& logits, std::int64_t first) const;
  void add_on_gpu(const at::Tensor& logits, std::int64_t first);
  at::Tensor slopes_on_gpu(const at::Tensor& logits, std::int64_t first) const;
  void add_by_kernels(const at::Tensor& logits, std::int64_t first);
  at::Tensor slopes_by_kernels(const at::Tensor& logits, std::int64_t first) const;
  std::pair<at::Tensor, at::Tensor> places(std::int64_t first, std::int64_t columns) const;

  at::Tensor target_;
  LossFactors factors_, slope_factors_;
  at::Tensor class_weight_;
  bool smooths_, has_kernels_;
  const gpu::Library* library_;
  std::int64_t classes_;
  at::ScalarType dtype_;
  at::Tensor largest_, sums_, log_sums_, chosen_, total_;  // one number for each row
  at::Tensor all_, spread_;                                // float32, for the kernels of a CPU
  at::Tensor scale_;                                       // scale of the slopes; undefined: 1
};

}  // namespace vernier
