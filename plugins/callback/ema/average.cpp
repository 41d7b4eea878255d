// ema: the average itself; see ema.cpp.
#include "average.h"

#include <ATen/ops/_foreach_add_.h>
#include <ATen/ops/_foreach_mul_.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace ema {

namespace {

torch::ScalarType wide(torch::ScalarType dtype) {
  return c10::elementSize(dtype) < 4 ? torch::kFloat : dtype;
}

}  // namespace

// With the strides of the tensors, so that one pass goes through both in the order of memory.
void Average::allocate(const std::vector<torch::Tensor>& like) {
  for (const auto& each : like) {
    tensors_.push_back(torch::zeros_like(each, each.options().dtype(wide(each.scalar_type())).requires_grad(false)));
  }
  if (by_operators_) on_device_ = torch::zeros({}, torch::dtype(torch::kLong).device(like.front().device()));
}

// In place, tensor by tensor: on a CPU that is what LibTorch's _foreach_lerp_ does, with the same bits, and 16-bit
// weights need no float32 copy of all of them.
void Average::update(const std::vector<torch::Tensor>& with, const torch::Tensor& skip_update) {
  if (with.empty()) return;
  const torch::NoGradGuard no_grad;
  if (tensors_.empty()) allocate(with);
  if (by_operators_) return update_by_operators(with, skip_update);
  if (skip_update.defined() && skip_update.item<float>() != 0) return;
  const auto n = static_cast<double>(updates_);
  const double decay = rule_.warmup ? std::min(rule_.decay, (1 + n) / (10 + n)) : rule_.decay;
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (updates_ == 0) {
      tensors_[i].copy_(with[i]);
    } else {
      tensors_[i].lerp_(with[i].to(tensors_[i].scalar_type()), 1 - decay);
    }
  }
  ++updates_;
}

// A factor on the device: 1 for the first update, 0 for one that is skipped. A few kernels for all tensors together,
// which take the memory of one more average while they run.
void Average::update_by_operators(const std::vector<torch::Tensor>& with, const torch::Tensor& skip_update) {
  const auto n = on_device_.to(torch::kDouble);
  auto decay = torch::full_like(n, rule_.decay);
  if (rule_.warmup) decay = torch::minimum(decay, (n + 1) / (n + 10));
  const auto is_applied = skip_update.defined() ? skip_update.eq(0) : torch::ones_like(n, torch::kBool);
  const auto factor = torch::where(n.eq(0), torch::ones_like(n), 1 - decay).mul_(is_applied);
  const auto way = at::_foreach_sub(with, tensors_);
  at::_foreach_mul_(way, factor.to(tensors_.front().scalar_type()));
  at::_foreach_add_(tensors_, way);
  on_device_.add_(is_applied);
}

torch::Tensor Average::updates() const {
  return by_operators_ && on_device_.defined() ? on_device_ : torch::scalar_tensor(updates_, torch::kLong);
}

bool Average::is_empty() const {
  return tensors_.empty() || updates().item<std::int64_t>() == 0;
}

void Average::load(std::int64_t updates, const std::vector<torch::Tensor>& saved,
                   const std::vector<torch::Tensor>& like) {
  const torch::NoGradGuard no_grad;
  if (tensors_.empty()) allocate(like);
  for (std::size_t i = 0; i < saved.size(); ++i) tensors_[i].copy_(saved[i]);
  updates_ = updates;
  if (by_operators_) on_device_.fill_(updates);
}

void Average::clear() {
  tensors_.clear();
  updates_ = 0;
  on_device_.reset();
}

}  // namespace ema
