#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/grad_norm.h>
#include <vernier/grad_scaler.h>

#include "optim/tensor_lists.h"

namespace vernier {

namespace {

// PyTorch divides in float64 and rounds. Correctly rounded float32 division, a host's, gives the same bits always; a
// GPU's may have been compiled to be less exact.
torch::Tensor inverse_of(const torch::Tensor& scale) {
  if (!scale.is_cpu()) return scale.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  return torch::scalar_tensor(1.0F / *scale.const_data_ptr<float>(), torch::kFloat32);
}

// Multiplies the gradients by a factor and returns 1, on the factor's device, where one was not finite before.
torch::Tensor multiply_and_check(const TensorVector& gradients, const torch::Tensor& factor) {
  auto found_inf = torch::zeros({}, factor.options());
  auto here = gradients;
  std::erase_if(here, draft::is_elsewhere);
  for (const auto& kind : by_device_and_dtype(here)) {
    const auto device = kind.front().device();
    if (device == factor.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(kind, found_inf, factor);
    } else {
      auto there = torch::zeros({}, factor.options().device(device));
      at::_amp_foreach_non_finite_check_and_unscale_(kind, there, moved(factor, device));
      found_inf = at::maximum(found_inf, moved(there, factor.device()));
    }
  }
  draft::GradientParts::sum(found_inf);
  return found_inf.clamp_max_(1);
}

// A sparse tensor's values stand for it.
TensorVector dense(const TensorVector& gradients) {
  TensorVector all;
  all.reserve(gradients.size());
  for (const auto& gradient : gradients) all.push_back(gradient.is_sparse() ? gradient._values() : gradient);
  return all;
}

TensorVector gradients_of(const torch::optim::Optimizer& optimizer) {
  TensorVector all;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      // Duplicate indices of scaled float16 values may overflow where they are added up: before the check, then.
      if (gradient.is_sparse() && gradient.scalar_type() == torch::kFloat16) gradient = gradient.coalesce();
      all.push_back(gradient);
    }
  }
  return all;
}

// 1 where a gradient is not finite, without a change to any; undefined if there are none.
torch::Tensor check(const TensorVector& gradients, const torch::Tensor& scale) {
  if (gradients.empty()) return {};
  const torch::NoGradGuard no_grad;
  return multiply_and_check(gradients, torch::ones({}, scale.options()));
}

const char* const stepped_twice = "step() has already been called since the last update()";

void require_found(const torch::Tensor& found_inf) {
  if (!found_inf.defined()) throw Error("No inf checks were recorded for this optimizer: it has no gradients");
}

}  // namespace

torch::Tensor unscale_gradients_(const TensorVector& gradients, const torch::Tensor& scale) {
  const torch::NoGradGuard no_grad;
  return multiply_and_check(dense(gradients), inverse_of(scale));
}

GradScaler::GradScaler(torch::Device device, GradScalerOptions options) : options_(options) {
  if (!options_.enabled) return;
  if (!(options_.growth_factor > 1)) throw Error("The growth factor must be > 1.0", Error::Kind::configuration);
  if (!(options_.backoff_factor < 1)) throw Error("The backoff factor must be < 1.0", Error::Kind::configuration);
  scale_ = torch::full({}, options_.init_scale, torch::dtype(torch::kFloat32).device(device));
  growth_tracker_ = torch::zeros({}, torch::dtype(torch::kInt32).device(device));
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss * moved(scale_, loss.device());
}

torch::Tensor GradScaler::unscale_once(const void* optimizer, const TensorVector& gradients) {
  auto& entry = optimizers_[optimizer];
  if (entry.stage == Stage::unscaled) {
    throw Error("unscale_() has already been called on this optimizer since the last update()");
  }
  if (entry.stage == Stage::stepped) throw Error("unscale_() is being called after step()");
  if (!gradients.empty()) entry.found_inf = unscale_gradients_(gradients, scale_);
  entry.stage = Stage::unscaled;
  return entry.found_inf;
}

torch::Tensor GradScaler::unscale_(const FusedOptimizer& optimizer) {
  return options_.enabled ? unscale_once(&optimizer, optimizer.gradients()) : torch::Tensor();
}

torch::Tensor GradScaler::unscale_(const torch::optim::Optimizer& optimizer) {
  return options_.enabled ? unscale_once(&optimizer, gradients_of(optimizer)) : torch::Tensor();
}

torch::Tensor GradScaler::unscale_(const TensorVector& gradients) {
  if (!options_.enabled) return {};
  auto found_inf = unscale_gradients_(gradients, scale_);
  if (!gradients.empty()) found_.push_back(found_inf);
  return found_inf;
}

torch::Tensor GradScaler::step(FusedOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return {};
  }
  auto& entry = optimizers_[&optimizer];
  if (entry.stage == Stage::stepped) throw Error(stepped_twice);
  const bool scaled = entry.stage == Stage::ready;
  if (scaled) entry.found_inf = check(optimizer.gradients(), scale_);
  require_found(entry.found_inf);
  optimizer.step(entry.found_inf, scaled ? scale_ : torch::Tensor());
  entry.stage = Stage::stepped;
  return entry.found_inf;
}

torch::Tensor GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return {};
  }
  auto& entry = optimizers_[&optimizer];
  if (entry.stage == Stage::stepped) throw Error(stepped_twice);
  if (entry.stage == Stage::ready) unscale_(optimizer);
  require_found(entry.found_inf);
  if (entry.found_inf.item<float>() == 0) optimizer.step();
  entry.stage = Stage::stepped;
  return entry.found_inf;
}

torch::Tensor GradScaler::clip_and_step(FusedOptimizer& optimizer, double max_norm) {
  const torch::NoGradGuard no_grad;
  auto& entry = optimizers_[&optimizer];
  if (entry.stage == Stage::stepped) throw Error(stepped_twice);
  const auto gradients = optimizer.gradients();
  const auto inspected = inspect_gradients(gradients);
  const bool scaled = options_.enabled && entry.stage == Stage::ready;
  const auto clipped = clip_scale(inspected.norm, max_norm, scaled ? scale_ : torch::Tensor());
  if (!options_.enabled) {
    optimizers_.erase(&optimizer);
    optimizer.step({}, clipped.grad_scale);
    return clipped.norm;
  }
  if (scaled && !gradients.empty()) entry.found_inf = inspected.found_inf;
  require_found(entry.found_inf);
  optimizer.step(entry.found_inf, clipped.grad_scale);
  entry.stage = Stage::stepped;
  return clipped.norm;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  const torch::NoGradGuard no_grad;
  if (new_scale) {
    scale_.fill_(*new_scale);
  } else {
    torch::Tensor found_inf = recorded();
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
  }
  optimizers_.clear();
  found_.clear();
}

// All checks since the last update in one tensor: not 0 where one of them is not.
torch::Tensor GradScaler::recorded() const {
  auto all = found_;
  for (const auto& [optimizer, entry] : optimizers_) {
    if (entry.found_inf.defined()) all.push_back(entry.found_inf);
  }
  if (all.empty()) throw Error("No inf checks were recorded prior to update");
  auto sum = all.front();
  for (std::size_t i = 1; i < all.size(); ++i) sum = sum + all[i];
  return sum;
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<double>() : 1.0;
}

std::int64_t GradScaler::get_growth_tracker() const {
  return options_.enabled ? growth_tracker_.item<std::int64_t>() : 0;
}

State GradScaler::state_dict() const {
  State state;
  if (!options_.enabled) return state;
  state.put("scale", get_scale());
  state.put("growth_factor", options_.growth_factor);
  state.put("backoff_factor", options_.backoff_factor);
  state.put("growth_interval", options_.growth_interval);
  state.put("_growth_tracker", get_growth_tracker());
  return state;
}

void GradScaler::load_state_dict(const State& state) {
  if (!options_.enabled) return;
  if (state.tensors.empty())
    throw Error("the saved state of the gradient scaler is empty: it was saved from a disabled one");
  auto options = options_;
  const double scale = state.real("scale");
  options.growth_factor = state.real("growth_factor");
  options.backoff_factor = state.real("backoff_factor");
  options.growth_interval = state.integer("growth_interval");
  growth_tracker_.fill_(state.integer("_growth_tracker"));
  scale_.fill_(scale);
  options_ = options;
}

}  // namespace vernier
