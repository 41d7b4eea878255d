// Adadelta, NAdam, RAdam, Adamax, Rprop and ASGD, in the forms of torch.optim: by LibTorch's operators.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "formula.h"
#include "optim_rule.h"

namespace vernier {

namespace {

// Returns the gradient with the L2 penalty.
torch::Tensor penalised(const FormulaUpdate& update, double weight_decay) {
  if (weight_decay == 0) return update.gradient;
  return at::add(update.gradient, update.parameter, weight_decay);
}

torch::Tensor mean_of_squares(const torch::Tensor& before, const torch::Tensor& value, double decay) {
  return at::addcmul(before * decay, value, value, 1 - decay);
}

// Applies a weight decay that may be decoupled, and the two means that NAdam and RAdam have. Returns the gradient.
template <class Options>
torch::Tensor update_means(FormulaUpdate& update, const Options& o, double lr) {
  const auto gradient = penalised(update, o.decoupled_weight_decay ? 0.0 : o.weight_decay);
  if (o.decoupled_weight_decay) update.parameter = update.parameter * (1 - lr * o.weight_decay);
  update.slots[0] = at::lerp(update.slots[0], gradient, 1 - o.beta1);
  update.slots[1] = mean_of_squares(update.slots[1], gradient, o.beta2);
  return gradient;
}

Formula adadelta_formula(const AdadeltaOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto gradient = penalised(update, o.weight_decay);
    const auto square = update.slots[0] = mean_of_squares(update.slots[0], gradient, o.rho);
    const auto delta = (update.slots[1] + o.eps).sqrt() / (square + o.eps).sqrt() * gradient;
    update.slots[1] = mean_of_squares(update.slots[1], delta, o.rho);
    update.parameter = at::add(update.parameter, delta, -lr);
  };
}

Formula nadam_formula(const NAdamOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto momentum = [&o](const torch::Tensor& step) {
      return o.beta1 * (1 - 0.5 * at::pow(0.96, step * o.momentum_decay));
    };
    const auto gradient = update_means(update, o, lr);
    const auto now = momentum(update.step), next = momentum(update.step + 1);
    const auto product = update.slots[2] = update.slots[2] * now;
    const auto root = (update.slots[1] / (1 - at::pow(o.beta2, update.step))).sqrt() + o.eps;
    const auto ahead = gradient * ((1 - now) / (1 - product)) + update.slots[0] * (next / (1 - product * next));
    update.parameter = at::addcdiv(update.parameter, ahead.to(root), root, -lr);
  };
}

Formula radam_formula(const RAdamOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    update_means(update, o, lr);
    const auto& step = update.step;
    const auto correction = 1 - at::pow(o.beta2, step);
    // The length of the average that the mean of squares is like, at last and now.
    const double last = 2 / (1 - o.beta2) - 1;
    const auto length = last - 2 * step * at::pow(o.beta2, step) / correction;
    const auto certainty = ((length - 4) * (length - 2) * last / ((last - 4) * (last - 2) * length)).sqrt();
    const auto adapted = certainty * correction.sqrt() / (update.slots[1].sqrt() + o.eps);
    const auto direction = update.slots[0] / (1 - at::pow(o.beta1, step));
    update.parameter = update.parameter - direction * lr * at::where(length > 5, adapted, at::ones_like(adapted));
  };
}

Formula adamax_formula(const AdamaxOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto gradient = penalised(update, o.weight_decay);
    const auto mean = update.slots[0] = at::lerp(update.slots[0], gradient, 1 - o.beta1);
    const auto largest = update.slots[1] = at::maximum(update.slots[1] * o.beta2, gradient.abs() + o.eps);
    update.parameter = update.parameter - mean / largest * (lr / (1 - at::pow(o.beta1, update.step)));
  };
}

Formula rprop_formula(const RpropOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto agreement = (update.gradient * update.slots[0]).sign();
    const auto turned = agreement < 0;
    const auto factor = at::where(agreement > 0, o.eta_plus, at::where(turned, o.eta_minus, at::ones_like(agreement)));
    const auto size = update.slots[1] = (update.slots[1] * factor).clamp(o.step_min, o.step_max);
    const auto gradient = update.slots[0] = at::where(turned, at::zeros_like(agreement), update.gradient);
    update.parameter = at::addcmul(update.parameter, gradient.sign(), size.to(gradient), -lr / o.lr);
  };
}

Formula asgd_formula(const ASGDOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto gradient = penalised(update, o.weight_decay);
    const auto before = update.step - 1;
    const auto size = lr / at::pow(1 + o.lambd * lr * before, o.alpha);
    update.parameter = update.parameter * (1 - o.lambd * size) - gradient * size;
    const auto share = (before - o.t0).clamp_min(1).reciprocal();
    update.slots[0] =
        at::where(share == 1, update.parameter, update.slots[0] + (update.parameter - update.slots[0]) * share);
  };
}

template <class Options>
void require_means(const Options& o) {
  require_in_range(
      AdamWOptions{.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay});
}

}  // namespace

void require_in_range(const AdadeltaOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.rho >= 0 && options.rho <= 1, "rho", options.rho, "0 to 1");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
}

void require_in_range(const NAdamOptions& options) {
  require_means(options);
  require(options.momentum_decay >= 0, "momentum_decay", options.momentum_decay, "at least 0");
}

void require_in_range(const RAdamOptions& options) {
  require_means(options);
}

void require_in_range(const AdamaxOptions& options) {
  require_means(options);
}

void require_in_range(const RpropOptions& options) {
  require(options.lr > 0, "lr", options.lr, "above 0");
  require(options.eta_minus > 0 && options.eta_minus < 1, "eta_minus", options.eta_minus, "above 0 and below 1");
  require(options.eta_plus > 1, "eta_plus", options.eta_plus, "above 1");
  require(options.step_min > 0, "step_min", options.step_min, "above 0");
  require(options.step_max >= options.step_min, "step_max", options.step_max, "at least step_min");
}

void require_in_range(const ASGDOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.lambd >= 0, "lambd", options.lambd, "at least 0");
  require(options.alpha >= 0, "alpha", options.alpha, "at least 0");
  require(options.t0 >= 0, "t0", options.t0, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
}

UpdateRule rule_of(const AdadeltaOptions& options, const torch::Tensor&) {
  return {{{"square_avg"}, {"acc_delta"}}, false, AdamState::full, by_formula(adadelta_formula(options))};
}

UpdateRule rule_of(const NAdamOptions& options, const torch::Tensor&) {
  const Slot product{"mu_product", torch::kFloat32, NumberFor::tensor, 1.0};
  return {{{"exp_avg"}, {"exp_avg_sq"}, product}, true, AdamState::full, by_formula(nadam_formula(options))};
}

UpdateRule rule_of(const RAdamOptions& options, const torch::Tensor&) {
  return {{{"exp_avg"}, {"exp_avg_sq"}}, true, AdamState::full, by_formula(radam_formula(options))};
}

UpdateRule rule_of(const AdamaxOptions& options, const torch::Tensor&) {
  return {{{"exp_avg"}, {"exp_inf"}}, true, AdamState::full, by_formula(adamax_formula(options))};
}

UpdateRule rule_of(const RpropOptions& options, const torch::Tensor&) {
  const Slot size{"step_size", {}, NumberFor::element, options.lr};
  return {{{"prev"}, size}, false, AdamState::full, by_formula(rprop_formula(options))};
}

UpdateRule rule_of(const ASGDOptions& options, const torch::Tensor&) {
  return {{{"ax"}}, true, AdamState::full, by_formula(asgd_formula(options))};
}

}  // namespace vernier
