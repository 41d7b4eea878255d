// recovery: z-scores of loss and gradient norm; see recovery.cpp.
#include "outliers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace recovery {

void Outliers::prepare(torch::Device device) {
  values_ = at::zeros({2, window_}, torch::dtype(torch::kDouble).device(device));
  count_ = at::zeros({}, torch::dtype(torch::kLong).device(device));
  places_ = at::arange(window_, torch::dtype(torch::kLong).device(device));
}

torch::Tensor Outliers::z_scores(const torch::Tensor& values) const {
  const torch::NoGradGuard no_grad;
  const auto needed = std::min(window_, std::max<std::int64_t>(20, window_ / 2));
  const auto taken = (places_ < count_).to(torch::kDouble);  // all 1 once the ring is full
  const auto n = taken.sum();
  const auto mean = (values_ * taken).sum(1) / n;
  const auto variance = ((values_ - mean.unsqueeze(1)) * taken).square().sum(1) / (n - 1);
  const auto judges = (count_ >= needed).logical_and(variance > 0);
  return at::where(judges, (values - mean) / variance.sqrt(), std::nan(""));
}

torch::Tensor Outliers::means() const {
  const auto taken = (places_ < count_).to(torch::kDouble);
  return (values_ * taken).sum(1) / taken.sum();
}

void Outliers::add(const torch::Tensor& values, const torch::Tensor& keep) {
  const torch::NoGradGuard no_grad;
  const auto place = (places_ == count_.remainder(window_)).logical_and(keep);
  values_ = at::where(place, values.unsqueeze(1), values_);
  count_ = count_ + keep.to(torch::kLong);
}

void Outliers::load(const vernier::State& state) {
  state.get("values", values_, values_.device());
  state.get("count", count_, count_.device());
}

}  // namespace recovery
