#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/ema.h>
#include <vernier/error.h>

#include <algorithm>
#include <utility>

#include "ema_operators.h"

namespace vernier {

namespace {

void require_same_shapes(const std::vector<torch::Tensor>& averages, const std::vector<torch::Tensor>& weights) {
  if (averages.size() != weights.size()) {
    throw Error(c10::str("the average is of ", averages.size(), " tensors, and there are ", weights.size(),
                         " weights: give the same weights to each call"));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (averages[i].sizes() == weights[i].sizes()) continue;
    throw Error(c10::str("the average of weight ", i, " is ", averages[i].sizes(), ", and the weight is ",
                         weights[i].sizes(), ": give the same weights to each call"));
  }
}

// Whole numbers, such as the counts of a batch norm, have no average: the newest ones are kept.
bool is_averaged(const torch::Tensor& weight) {
  return !c10::isIntegralType(weight.scalar_type(), /*includeBool=*/true);
}

}  // namespace

Ema::Ema(EmaOptions options) : options_(options) {
  if (options.decay >= 0 && options.decay < 1) return;
  refuse(c10::str("the decay of an average is ", options.decay, ": it must be at least 0 and below 1"));
}

// With the strides of the weights, so that one pass goes through both in the order of memory.
void Ema::lay_out(const std::vector<torch::Tensor>& like) {
  std::vector<torch::Tensor> laid_out;
  laid_out.reserve(like.size());
  for (std::size_t i = 0; i < like.size(); ++i) {
    const auto dtype = is_averaged(like[i]) && like[i].element_size() < 4 ? torch::kFloat32 : like[i].scalar_type();
    laid_out.push_back(torch::zeros_like(like[i], like[i].options().dtype(dtype).requires_grad(false)));
    if (!tensors_.empty()) laid_out.back().copy_(tensors_[i]);
  }
  tensors_ = std::move(laid_out);
  const auto device = like.front().device();
  if (!device.is_cpu()) on_device_ = torch::full({}, updates_, torch::dtype(torch::kInt64).device(device));
  is_laid_out_ = true;
}

void Ema::update(const std::vector<torch::Tensor>& weights, const torch::Tensor& skip_update) {
  const torch::NoGradGuard no_grad;
  if (!tensors_.empty()) require_same_shapes(tensors_, weights);
  if (weights.empty()) return;
  if (!is_laid_out_) lay_out(weights);
  if (on_device_.defined()) return average_by_operators(options_, tensors_, on_device_, weights, skip_update);
  update_on_host(weights, skip_update);
}

// In place, tensor by tensor: on a CPU that is what LibTorch's _foreach_lerp_ does, with the same bits, and 16-bit
// weights need no float32 copy of all of them.
void Ema::update_on_host(const std::vector<torch::Tensor>& weights, const torch::Tensor& skip_update) {
  if (skip_update.defined() && skip_update.item<float>() != 0) return;
  const auto n = static_cast<double>(updates_);
  const double decay = options_.warmup ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (updates_ == 0 || !is_averaged(weights[i])) {
      tensors_[i].copy_(weights[i]);
    } else {
      tensors_[i].lerp_(weights[i].to(tensors_[i].scalar_type()), 1 - decay);
    }
  }
  ++updates_;
}

// A factor on the device: 1 for the first update, 0 for one that is skipped. A few kernels for all tensors together,
// which take the memory of one more average while they run.
void average_by_operators(const EmaOptions& options, const std::vector<torch::Tensor>& averages,
                          const torch::Tensor& updates, const std::vector<torch::Tensor>& weights,
                          const torch::Tensor& skip_update) {
  const auto n = updates.to(torch::kFloat64);
  auto decay = torch::full_like(n, options.decay);
  if (options.warmup) decay = torch::minimum(decay, (n + 1) / (n + 10));
  const auto is_applied = skip_update.defined() ? skip_update.eq(0) : torch::ones_like(n, torch::kBool);
  const auto factor = torch::where(n.eq(0), torch::ones_like(n), 1 - decay).mul_(is_applied);
  std::vector<torch::Tensor> to, from;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (is_averaged(weights[i])) {
      to.push_back(weights[i]);
      from.push_back(averages[i]);
    } else {
      averages[i].copy_(torch::where(is_applied, weights[i], averages[i]));
    }
  }
  if (!to.empty()) {
    const auto way = at::_foreach_sub(to, from);
    at::_foreach_mul_(way, factor.to(from.front().scalar_type()));
    at::_foreach_add_(from, way);
  }
  updates.add_(is_applied);
}

void Ema::copy_to(const std::vector<torch::Tensor>& weights) const {
  if (is_empty()) throw Error("there is no average yet: call update() first");
  require_same_shapes(tensors_, weights);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i].copy_(tensors_[i]);
}

torch::Tensor Ema::updates() const {
  return on_device_.defined() ? on_device_ : torch::scalar_tensor(updates_, torch::kInt64);
}

bool Ema::is_empty() const {
  return tensors_.empty() || updates().item<std::int64_t>() == 0;
}

State Ema::state_dict() const {
  State state;
  if (tensors_.empty()) return state;
  state.put("updates", updates());
  for (std::size_t i = 0; i < tensors_.size(); ++i) state.put(c10::str("average/", i), tensors_[i]);
  return state;
}

// The next update() brings the tensors to the weights' device.
void Ema::load_state_dict(const State& state) {
  std::int64_t updates = 0;
  std::vector<torch::Tensor> averages;
  if (!state.tensors.empty()) {
    updates = state.integer("updates");
    for (std::size_t i = 0; i + 1 < state.tensors.size(); ++i) {
      averages.push_back(state.tensor(c10::str("average/", i)).clone());
    }
  }
  tensors_ = std::move(averages);
  updates_ = updates;
  on_device_.reset();
  is_laid_out_ = false;
}

}  // namespace vernier
