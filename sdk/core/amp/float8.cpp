#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/float8.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/gpu_float8.h"

namespace vernier {

namespace {

constexpr std::int32_t exponent_bits = 0x7F800000;  // exponent of a float32

std::int64_t blocks_in(std::int64_t size, std::int64_t block) {
  return block == 0 ? 1 : std::max<std::int64_t>(1, (size + block - 1) / block);
}

// A matrix as [blocks of rows, rows of a block, blocks of columns, columns of a block]; zeros fill the blocks at the
// edges, which changes no largest magnitude.
torch::Tensor in_blocks(const torch::Tensor& matrix, ScaleBlock block) {
  if (matrix.dim() != 2)
    throw Error(c10::str("scales of blocks need a matrix, and this tensor is of shape ", matrix.sizes()));
  const auto rows = matrix.size(0), columns = matrix.size(1);
  const auto height = block.rows == 0 ? rows : block.rows, width = block.columns == 0 ? columns : block.columns;
  const auto down = blocks_in(rows, block.rows), across = blocks_in(columns, block.columns);
  const auto more_rows = down * height - rows, more_columns = across * width - columns;
  const auto whole =
      more_rows == 0 && more_columns == 0 ? matrix : at::constant_pad_nd(matrix, {0, more_columns, 0, more_rows});
  return whole.view({down, height, across, width});
}

// A matrix times one factor a block.
torch::Tensor times(const torch::Tensor& matrix, const torch::Tensor& factors, ScaleBlock block) {
  if (factors.dim() == 0) return matrix * factors;
  if (block.rows <= 1 && block.columns <= 1 && block.rows != block.columns) return matrix * factors;  // a row or column
  const auto product = in_blocks(matrix, block) * factors.unsqueeze(1).unsqueeze(3);
  const auto whole = product.reshape({product.size(0) * product.size(1), product.size(2) * product.size(3)});
  return whole.narrow(0, 0, matrix.size(0)).narrow(1, 0, matrix.size(1));
}

}  // namespace

double float8_max(torch::ScalarType format) {
  if (format == torch::kFloat8_e4m3fn) return 448;
  if (format == torch::kFloat8_e5m2) return 57344;
  throw Error(c10::str("fp8 is Float8_e4m3fn or Float8_e5m2, not ", format));
}

torch::Tensor float8_amax(const torch::Tensor& x, ScaleBlock block) {
  const torch::NoGradGuard no_grad;
  if (block == per_tensor) {
    if (x.numel() == 0) return torch::zeros({}, x.options().dtype(torch::kFloat32));
    const auto* const library = gpu_library(x.device());
    if (library != nullptr && can_cast_on_gpu(x)) return amax_on_gpu(*library, x);
    const auto [low, high] = at::aminmax(x);
    return at::maximum(low.neg(), high).to(torch::kFloat32);
  }
  const auto blocks = in_blocks(x, block);
  if (x.numel() == 0) return torch::zeros({blocks.size(0), blocks.size(2)}, x.options().dtype(torch::kFloat32));
  return blocks.abs().amax({1, 3}).to(torch::kFloat32);
}

torch::Tensor float8_scale(const torch::Tensor& amax, torch::ScalarType format, double margin, bool power_of_two) {
  const torch::NoGradGuard no_grad;
  const auto largest =
      torch::scalar_tensor(float8_max(format) * std::exp2(-margin), amax.options().dtype(torch::kFloat32));
  const auto one = torch::ones({}, largest.options());
  auto scale = at::div(largest, amax).clamp_max(std::numeric_limits<float>::max());
  if (power_of_two) scale = scale.view(torch::kInt32).bitwise_and(exponent_bits).view(torch::kFloat32);
  return at::where(at::isfinite(amax).logical_and_(amax > 0), scale, one);
}

// On a CPU a table of all 256 is six times as fast as LibTorch's cast of E4M3, and holds the same.
torch::Tensor from_float8(const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  if (!values.is_cpu() || values.scalar_type() != torch::kFloat8_e4m3fn) return values.to(torch::kFloat32);
  static const auto table = at::arange(256, torch::kUInt8).view(torch::kFloat8_e4m3fn).to(torch::kFloat32);
  if (values.dim() == 2 && !values.is_contiguous() && values.t().is_contiguous()) return from_float8(values.t()).t();
  const auto codes = values.contiguous().view(torch::kUInt8).to(torch::kInt32).view({-1});
  return table.index_select(0, codes).view(values.sizes());
}

torch::Tensor Float8Tensor::dequantize() const {
  const torch::NoGradGuard no_grad;
  return times(from_float8(values), scale.reciprocal(), block);
}

Float8Tensor Float8Tensor::t() const {
  return {values.t(), scale.dim() == 0 ? scale : scale.t(), {block.columns, block.rows}, inverse};
}

Float8Tensor float8_quantize(const torch::Tensor& x, const torch::Tensor& scale, torch::ScalarType format,
                             ScaleBlock block) {
  const torch::NoGradGuard no_grad;
  const double largest = float8_max(format);
  const auto* const library = block == per_tensor ? gpu_library(x.device()) : nullptr;
  if (library != nullptr && can_cast_on_gpu(x)) return {cast_on_gpu(*library, x, scale, format), scale, block};
  auto scaled = times(x.to(torch::kFloat32), scale, block);
  return {scaled.clamp_(-largest, largest).to(format), scale, block};
}

AmaxHistory::AmaxHistory(std::int64_t updates, std::int64_t columns, bool most_recent)
    : history_(torch::zeros({updates, columns})), most_recent_(most_recent) {}

void AmaxHistory::record(std::int64_t column, const torch::Tensor& largest) {
  const torch::NoGradGuard no_grad;
  auto slot = history_.select(0, 0).select(0, column);
  slot.copy_(at::maximum(slot, largest));
}

// Transformer Engine's kernel_bulk, delayed_scaling.cu, for all columns at once.
AmaxHistory::Counted AmaxHistory::end_update() {
  const torch::NoGradGuard no_grad;
  const auto last = history_.select(0, 0);
  const auto used = last != 0;
  auto rolled = history_.roll(-1, 0);
  const auto counts = most_recent_ ? last.clone() : at::where(rolled.isnan(), 0.0F, rolled).amax(0);
  rolled.select(0, 0).zero_();
  history_ = at::where(used, rolled, history_);
  return {counts, used.logical_and(at::isfinite(counts)).logical_and_(counts > 0)};
}

void AmaxHistory::load(const torch::Tensor& saved) {
  if (saved.sizes() != history_.sizes()) {
    throw Error(c10::str("the saved amax_history is of shape ", saved.sizes(), ", and amax_history_len asks for ",
                         history_.sizes()));
  }
  history_ = saved.to(history_.options(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace vernier
