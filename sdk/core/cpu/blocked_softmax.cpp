#include "blocked_softmax.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/rows.h"
#include "gpu/gpu_library.h"

namespace vernier {

at::Tensor LossFactors::slope_scale() const {
  if (all.numel() == 0) return at::ones({}, all.options());
  return (12 - all.abs().amax().log2().ceil()).nan_to_num(0, 0, 0).clamp(-100, 100).exp2();
}

BlockedSoftmax::BlockedSoftmax(const at::Tensor& target, LossFactors factors, const at::Tensor& class_weight,
                               double smoothing, std::int64_t classes, at::ScalarType dtype,
                               const gpu::Library* library)
    : target_(target.contiguous()),
      factors_(std::move(factors)),
      slope_factors_(factors_),
      class_weight_(class_weight),
      smooths_(smoothing != 0),
      has_kernels_(dtype != at::kDouble && !(smooths_ && class_weight.defined())),
      library_(has_kernels_ ? library : nullptr),
      classes_(classes),
      dtype_(dtype) {
  const auto wide = target.options().dtype(wide_of(dtype)), sums = target.options().dtype(at::kDouble);
  largest_ = at::full(target.sizes(), -std::numeric_limits<double>::infinity(), wide);
  log_sums_ = at::empty(target.sizes(), wide);
  sums_ = at::zeros(target.sizes(), sums);
  chosen_ = at::full(target.sizes(), NAN, sums);
  if (smooths_) total_ = at::zeros(target.sizes(), sums);
  has_kernels_ = has_kernels_ && library_ == nullptr && target.is_cpu() && may_compute_rows();
  if (!has_kernels_) return;
  all_ = factors_.all.to(at::kFloat).contiguous();
  spread_ = factors_.spread.to(at::kFloat).contiguous();
}

void BlockedSoftmax::scale_slopes(const at::Tensor& scale) {
  TORCH_INTERNAL_ASSERT(!has_kernels_);  // the kernels of a CPU do not scale
  scale_ = scale;
  slope_factors_ = {factors_.hit * scale, factors_.spread * scale, factors_.all * scale};
}

// Returns for each row whether its target is in the block, and its column there, or 0.
std::pair<at::Tensor, at::Tensor> BlockedSoftmax::places(std::int64_t first, std::int64_t columns) const {
  const auto column = target_ - first;
  const auto is_here = (column >= 0).logical_and(column < columns);
  return {is_here, (column * is_here).unsqueeze(1)};
}

std::int64_t BlockedSoftmax::columns_of(const at::Tensor& logits, std::int64_t first) const {
  return std::min(logits.size(1), classes_ - first);
}

void BlockedSoftmax::add(const at::Tensor& all_logits, std::int64_t first) {
  if (library_ != nullptr) return add_on_gpu(all_logits, first);
  const auto logits = all_logits.narrow(1, 0, columns_of(all_logits, first));
  if (smooths_) {
    const auto wide = logits.to(wide_of(dtype_));
    total_ += class_weight_.defined()
                  ? at::mv(wide, class_weight_.narrow(0, first, logits.size(1)).to(wide.scalar_type()))
                  : wide.sum(1, false, at::kDouble);
  }
  if (has_kernels_) return add_by_kernels(logits, first);
  const auto x = logits.to(wide_of(dtype_));
  const auto most = at::maximum(largest_, x.amax(1));
  const auto base = at::where(most == -std::numeric_limits<double>::infinity(), at::zeros_like(most), most);
  const auto share = at::where(most == largest_, at::ones_like(most), (largest_ - most).exp());
  sums_ = sums_ * share + (x - base.unsqueeze(1)).exp().sum(1, false, at::kDouble);
  largest_ = most;
  const auto [is_here, column] = places(first, x.size(1));
  chosen_ = at::where(is_here, x.gather(1, column).squeeze(1).to(at::kDouble), chosen_);
}

void BlockedSoftmax::add_on_gpu(const at::Tensor& logits, std::int64_t first) {
  const c10::DeviceGuard guard(logits.device());
  const gpu::SoftmaxSums rows{logits.const_data_ptr(),
                              kind_of(dtype_),
                              logits.size(0),
                              columns_of(logits, first),
                              logits.size(1),
                              first,
                              target_.const_data_ptr<std::int64_t>(),
                              largest_.mutable_data_ptr<float>(),
                              sums_.mutable_data_ptr<double>(),
                              chosen_.mutable_data_ptr<double>(),
                              smooths_ ? total_.mutable_data_ptr<double>() : nullptr};
  require_launched(library_->softmax_sums(rows, stream_of(logits.device())), "softmax_sums");
}

at::Tensor BlockedSoftmax::slopes_on_gpu(const at::Tensor& logits, std::int64_t first) const {
  const c10::DeviceGuard guard(logits.device());
  TORCH_INTERNAL_ASSERT(slope_dtype() == dtype_);
  const gpu::SoftmaxSlopes rows{logits.const_data_ptr(),
                                logits.mutable_data_ptr(),
                                kind_of(dtype_),
                                logits.size(0),
                                columns_of(logits, first),
                                logits.size(1),
                                first,
                                target_.const_data_ptr<std::int64_t>(),
                                largest_.const_data_ptr<float>(),
                                log_sums_.const_data_ptr<float>(),
                                slope_factors_.all.const_data_ptr<double>(),
                                slope_factors_.hit.const_data_ptr<double>(),
                                slope_factors_.spread.const_data_ptr<double>()};
  require_launched(library_->softmax_slopes(rows, stream_of(logits.device())), "softmax_slopes");
  return logits;
}

void BlockedSoftmax::add_by_kernels(const at::Tensor& logits, std::int64_t first) {
  const auto rows = logits.size(0), columns = logits.size(1);
  const RowSums sums{largest_.mutable_data_ptr<float>(), sums_.mutable_data_ptr<double>(), nullptr};
  const auto* target = target_.const_data_ptr<std::int64_t>();
  auto* const chosen = chosen_.mutable_data_ptr<double>();
  with_row_kernels(dtype_, [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = logits.const_data_ptr<Element>();
    Chunks({rows, columns}).for_each([&](auto start, auto row, const Rows& part, auto) {
      kernels.add_to_softmax(part, from + start, {sums.largest + row, sums.sums + row, nullptr});
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto column = target[row] - first;
      if (column < 0 || column >= columns) continue;
      chosen[row] = static_cast<double>(static_cast<float>(from[row * columns + column]));
    }
  });
}

at::Tensor BlockedSoftmax::loss() {
  const auto logs = sums_.log(), largest = largest_.to(at::kDouble);
  log_sums_.copy_(logs);
  auto losses = factors_.hit * (largest - chosen_ + logs);
  if (smooths_) {
    const auto of_others = factors_.all - factors_.hit;
    losses = losses + (of_others * (largest + logs) - factors_.spread * total_);
  }
  return at::where(factors_.all != 0, losses, at::zeros_like(losses)).sum();
}

at::Tensor BlockedSoftmax::slopes(const at::Tensor& all_logits, std::int64_t first) const {
  if (library_ != nullptr) return slopes_on_gpu(all_logits, first);
  const auto logits = all_logits.narrow(1, 0, columns_of(all_logits, first));
  if (has_kernels_) return slopes_by_kernels(logits, first);
  const auto wide = wide_of(dtype_);
  const auto column_of = [&](const at::Tensor& x) { return x.to(wide).unsqueeze(1); };
  auto slopes =
      (logits.to(wide) - largest_.unsqueeze(1) - log_sums_.unsqueeze(1)).exp() * column_of(slope_factors_.all);
  if (smooths_) {
    const auto spread = column_of(slope_factors_.spread);
    slopes -= class_weight_.defined() ? spread * class_weight_.narrow(0, first, logits.size(1)).to(wide) : spread;
  }
  const auto [is_here, column] = places(first, logits.size(1));
  slopes.scatter_add_(1, column, -column_of(slope_factors_.hit * is_here));
  return at::where(column_of(factors_.all) != 0, slopes, at::zeros({}, slopes.options())).to(slope_dtype());
}

at::Tensor BlockedSoftmax::slopes_by_kernels(const at::Tensor& logits, std::int64_t first) const {
  const auto rows = logits.size(0), columns = logits.size(1);
  auto slopes = at::empty_like(logits, logits.options().dtype(slope_dtype()));
  const RowSums sums{largest_.mutable_data_ptr<float>(), nullptr, log_sums_.mutable_data_ptr<float>()};
  const auto *all = all_.const_data_ptr<float>(), *spread = spread_.const_data_ptr<float>();
  const auto* hit = factors_.hit.const_data_ptr<double>();
  const auto* target = target_.const_data_ptr<std::int64_t>();
  with_row_kernels(dtype_, [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    using Slope = typename RowKernels<Element>::Slope;
    const auto* from = logits.const_data_ptr<Element>();
    auto* const to = slopes.mutable_data_ptr<Slope>();
    Chunks({rows, columns}).for_each([&](auto start, auto row, const Rows& part, auto) {
      kernels.scaled_softmax(part, from + start, {sums.largest + row, nullptr, sums.log_sums + row}, all + row,
                             spread + row, to + start);
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto column = target[row] - first;
      if (column < 0 || column >= columns) continue;
      const auto x = static_cast<double>(static_cast<float>(from[row * columns + column]));
      const auto log_share = x - static_cast<double>(sums.largest[row]) - static_cast<double>(sums.log_sums[row]);
      const auto whole = static_cast<double>(all[row]), others = static_cast<double>(spread[row]);
      // softmax - 1, exact where it is nearly 0, and what is left of the 1 by smoothing
      const double slope = whole * std::expm1(log_share) + (smooths_ ? whole - hit[row] - others : 0.0);
      to[row * columns + column] = static_cast<Slope>(static_cast<float>(slope));
    }
  });
  return slopes;
}

}  // namespace vernier
