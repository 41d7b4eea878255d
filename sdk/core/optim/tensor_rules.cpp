// LAMB, Adafactor and Muon, which look at each tensor as a whole: by LibTorch's operators.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formula.h"
#include "optim_rule.h"

namespace vernier {

namespace {

torch::Tensor two_norm(const torch::Tensor& tensor) {
  return at::linalg_vector_norm(tensor);
}

Formula lamb_formula(const LambOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto &gradient = update.gradient, &weight = update.parameter;
    const auto mean = update.slots[0] = at::add(update.slots[0] * o.beta1, gradient, 1 - o.beta1);
    const auto square = update.slots[1] = at::addcmul(update.slots[1] * o.beta2, gradient, gradient, 1 - o.beta2);
    const auto mean_correction = 1 - at::pow(o.beta1, update.step), correction = 1 - at::pow(o.beta2, update.step);
    auto direction = mean / mean_correction / ((square / correction).sqrt() + o.eps);
    if (o.weight_decay != 0) direction = at::add(direction, weight, o.weight_decay);
    auto rate = at::full({}, lr, update.step.options());
    if (o.trust_ratio) {
      const auto of_weight = two_norm(weight), of_step = two_norm(direction);
      rate = rate * at::where((of_weight > 0).logical_and(of_step > 0), of_weight / of_step, at::ones_like(of_weight));
    }
    update.parameter = weight - direction * rate;
  };
}

double least_of(const AdafactorOptions& o, torch::ScalarType dtype) {
  if (o.eps1 != 0) return o.eps1;
  if (dtype == torch::kFloat64) return std::numeric_limits<double>::epsilon();
  if (dtype == torch::kBFloat16) return 0x1p-7;
  return dtype == torch::kFloat16 ? 0x1p-10 : double{std::numeric_limits<float>::epsilon()};
}

// Returns the mean of squares of each element: as it is kept, or from its rows and columns.
torch::Tensor estimated_squares(FormulaUpdate& update, const torch::Tensor& share, double eps1) {
  const auto& gradient = update.gradient;
  if (gradient.dim() < 2) return update.slots[0] = at::lerp(update.slots[0], gradient * gradient, share);
  const auto mean_over = [&](std::int64_t dim) {
    const auto norm = at::linalg_vector_norm(gradient, 2, at::IntArrayRef{dim}, /*keepdim=*/true);
    return norm.square() / static_cast<double>(gradient.size(dim));
  };
  const auto rows = update.slots[0] = at::lerp(update.slots[0], mean_over(-1), share);
  const auto columns = update.slots[1] = at::lerp(update.slots[1], mean_over(-2), share);
  return rows * columns / rows.mean(at::IntArrayRef{-2}, /*keepdim=*/true).clamp_min(eps1);
}

Formula adafactor_formula(const AdafactorOptions& o, double eps1) {
  return [o, eps1](FormulaUpdate& update, double lr) {
    const auto root_of_count = std::sqrt(static_cast<double>(update.parameter.numel()));
    const auto relative = update.step.rsqrt().clamp_max(lr);
    const auto rate = (two_norm(update.parameter).to(torch::kFloat64) / root_of_count).clamp_min(o.eps2) * relative;
    const auto share = update.step.pow(o.beta2_decay).to(update.gradient.scalar_type());
    const auto squares = estimated_squares(update, share, eps1);
    const auto direction = squares.clamp_min(eps1 * eps1).rsqrt() * update.gradient;
    const auto over = (two_norm(direction).to(torch::kFloat64) / (root_of_count * o.clipping_threshold)).clamp_min(1);
    update.parameter = update.parameter * (1 - lr * o.weight_decay) - direction * (rate / over);
  };
}

// Returns U S' V^T of a matrix U S V^T, where all of S' is near 1: torch.optim's _zeropower_via_newtonschulz.
torch::Tensor nearly_orthogonal(const torch::Tensor& matrix, const MuonOptions& o) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;  // a steep slope at 0: Jordan et al.
  const bool is_tall = matrix.size(0) > matrix.size(1);
  auto x = matrix.to(torch::kBFloat16);
  if (is_tall) x = x.t();
  x = x / two_norm(x).clamp_min(o.eps);
  for (std::int64_t i = 0; i < o.ns_steps; ++i) {
    const auto gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return is_tall ? x.t() : x;
}

Formula muon_formula(const MuonOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto mean = update.slots[0] = at::lerp(update.slots[0], update.gradient, 1 - o.momentum);
    const auto direction = o.nesterov ? at::lerp(update.gradient, mean, o.momentum) : mean;
    const auto rows = static_cast<double>(direction.size(0)), columns = static_cast<double>(direction.size(1));
    const auto factor = o.rate == MuonRate::original ? std::sqrt(std::max(1.0, rows / columns))
                                                     : 0.2 * std::sqrt(std::max(rows, columns));
    update.parameter =
        at::add(update.parameter * (1 - lr * o.weight_decay), nearly_orthogonal(direction, o), -lr * factor);
  };
}

AdamWOptions adamw_of(const MuonOptions& o) {
  return {.lr = o.adamw_lr,
          .beta1 = o.adamw_beta1,
          .beta2 = o.adamw_beta2,
          .eps = o.adamw_eps,
          .weight_decay = o.weight_decay};
}

}  // namespace

void require_in_range(const LambOptions& options) {
  require_in_range(AdamWOptions{.lr = options.lr,
                                .beta1 = options.beta1,
                                .beta2 = options.beta2,
                                .eps = options.eps,
                                .weight_decay = options.weight_decay});
}

void require_in_range(const AdafactorOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.beta2_decay <= 0, "beta2_decay", options.beta2_decay, "at most 0");
  require(options.eps1 >= 0, "eps1", options.eps1, "at least 0");
  require(options.eps2 >= 0, "eps2", options.eps2, "at least 0");
  require(options.clipping_threshold >= 1, "clipping_threshold", options.clipping_threshold, "at least 1");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
}

void require_in_range(const MuonOptions& options) {
  require(options.lr > 0, "lr", options.lr, "above 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  require(options.momentum >= 0 && options.momentum <= 1, "momentum", options.momentum, "0 to 1");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
  require(options.ns_steps >= 1 && options.ns_steps < 100, "ns_steps", static_cast<double>(options.ns_steps),
          "1 to 99");
  require_in_range(adamw_of(options));
}

UpdateRule rule_of(const LambOptions& options, const torch::Tensor&) {
  return {{{"exp_avg"}, {"exp_avg_sq"}}, true, AdamState::full, by_formula(lamb_formula(options))};
}

UpdateRule rule_of(const AdafactorOptions& options, const torch::Tensor& parameter) {
  std::vector<Slot> slots{{"variance"}};
  if (parameter.dim() > 1) slots = {{"row_var", {}, NumberFor::row}, {"col_var", {}, NumberFor::column}};
  const auto eps1 = least_of(options, parameter.scalar_type());
  return {slots, true, AdamState::full, by_formula(adafactor_formula(options, eps1))};
}

UpdateRule rule_of(const MuonOptions& options, const torch::Tensor& parameter) {
  if (parameter.dim() == 2 && !options.adamw) {
    return {{{"momentum_buffer"}}, false, AdamState::full, by_formula(muon_formula(options))};
  }
  auto rule = rule_of(adamw_of(options), parameter);
  rule.apply = [share = options.adamw_lr / options.lr, apply = rule.apply](
                   const UpdateLists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
    apply(lists, lr * share, grad_scale, found_inf);
  };
  return rule;
}

}  // namespace vernier
