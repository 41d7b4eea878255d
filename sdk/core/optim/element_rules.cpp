// RMSprop, Adagrad and Lion: on the host in float32 by a kernel that makes one pass, otherwise by LibTorch's operators.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/kernels.h"
#include "base/parallel.h"
#include "formula.h"
#include "gpu_optimizers.h"
#include "optim/kernels/element_kernel.h"
#include "optim_rule.h"

namespace vernier {

namespace {

// numbers_at(i): the numbers for parameter i of the lists.
template <class NumbersAt, class Kernel>
void elements_on_host(const UpdateLists& lists, double l2, const MaybeTensor& grad_scale, const NumbersAt& numbers_at,
                      const Kernel& kernel) {
  constexpr std::int64_t elements = 4096;
  using Numbers = decltype(numbers_at(std::size_t{0}));
  std::vector<std::pair<Numbers, ElementRun>> tensors;
  tensors.reserve(lists.parameters.size());
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    ElementRun whole{lists.parameters[i].numel(),
                     lists.parameters[i].data_ptr<float>(),
                     lists.gradients[i].const_data_ptr<float>(),
                     {}};
    for (std::size_t k = 0; k < lists.slots.size(); ++k) whole.state[k] = lists.slots[k][i].data_ptr<float>();
    if (grad_scale) whole.grad_scale = *grad_scale->const_data_ptr<float>();
    whole.l2 = static_cast<float>(l2);
    tensors.emplace_back(numbers_at(i), whole);
  }
  for_each_chunk_of(
      tensors.size(), elements, [&](std::size_t i) { return tensors[i].second.count; },
      [&](std::size_t i, std::int64_t start) {
        ElementRun run = tensors[i].second;
        run.count = std::min(elements, run.count - start);
        run.parameter += start;
        run.gradient += start;
        for (std::size_t k = 0; k < lists.slots.size(); ++k) run.state[k] += start;
        kernel(tensors[i].first, run);
      });
}

bool has_host_kernel(const torch::Tensor& parameter) {
  return parameter.is_cpu() && parameter.scalar_type() == torch::kFloat32;
}

torch::Tensor with_l2(const FormulaUpdate& update, double weight_decay) {
  return weight_decay == 0 ? update.gradient : at::add(update.gradient, update.parameter, weight_decay);
}

Formula rmsprop_formula(const RMSpropOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto gradient = with_l2(update, o.weight_decay);
    update.slots[0] = at::addcmul(update.slots[0] * o.alpha, gradient, gradient, 1 - o.alpha);
    auto variance = update.slots[0];
    if (o.centered) {
      update.slots[1] = at::lerp(update.slots[1], gradient, 1 - o.alpha);
      variance = at::addcmul(variance, update.slots[1], update.slots[1], -1).clamp_min(0);
    }
    auto direction = gradient / (variance.sqrt() + o.eps);
    if (o.momentum != 0) direction = update.slots.back() = update.slots.back() * o.momentum + direction;
    update.parameter = at::add(update.parameter, direction, -lr);
  };
}

RMSpropNumbers numbers_of(const RMSpropOptions& o, double lr) {
  return {static_cast<float>(o.alpha),    static_cast<float>(1 - o.alpha), static_cast<float>(o.eps),
          static_cast<float>(o.momentum), static_cast<float>(lr),          o.centered};
}

Formula adagrad_formula(const AdagradOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto gradient = with_l2(update, o.weight_decay);
    update.slots[0] = at::addcmul(update.slots[0], gradient, gradient);
    const auto rate = lr / (1 + (update.step - 1) * o.lr_decay);
    update.parameter = update.parameter - rate * (gradient / (update.slots[0].sqrt() + o.eps));
  };
}

Formula lion_formula(const LionOptions& o) {
  return [o](FormulaUpdate& update, double lr) {
    const auto sign = at::sign(update.slots[0] * o.beta1 + update.gradient * (1 - o.beta1));
    update.slots[0] = at::add(update.slots[0] * o.beta2, update.gradient, 1 - o.beta2);
    update.parameter = at::add(update.parameter * (1 - lr * o.weight_decay), sign, -lr);
  };
}

LionNumbers numbers_of(const LionOptions& o, double lr) {
  return {static_cast<float>(o.beta1),
          static_cast<float>(1 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2),
          static_cast<float>(1 - lr * o.weight_decay),
          static_cast<float>(lr)};
}

}  // namespace

void require_in_range(const RMSpropOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.alpha >= 0 && options.alpha < 1, "alpha", options.alpha, "at least 0 and below 1");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  require(options.momentum >= 0, "momentum", options.momentum, "at least 0");
}

void require_in_range(const AdagradOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.lr_decay >= 0, "lr_decay", options.lr_decay, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  require(options.initial_accumulator_value >= 0, "initial_accumulator_value", options.initial_accumulator_value,
          "at least 0");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
}

void require_in_range(const LionOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "at least 0 and below 1");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "at least 0 and below 1");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
}

UpdateRule rule_of(const RMSpropOptions& o, const torch::Tensor& parameter) {
  UpdateRule rule{{{"square_avg"}}, false, AdamState::full, {}};
  if (o.centered) rule.slots.push_back({"grad_avg"});
  if (o.momentum != 0) rule.slots.push_back({"momentum_buffer"});
  rule.apply = by_formula(rmsprop_formula(o));
  if (!has_host_kernel(parameter)) return rule;
  rule.apply = [o](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor&) {
    elements_on_host(
        lists, o.weight_decay, grad_scale, [&](std::size_t) { return numbers_of(o, lr); },
        best_kernels<ElementKernels>()->rmsprop);
  };
  return rule;
}

UpdateRule rule_of(const AdagradOptions& o, const torch::Tensor& parameter) {
  UpdateRule rule{{{"sum", {}, NumberFor::element, o.initial_accumulator_value}}, true, AdamState::full, {}};
  rule.apply = by_formula(adagrad_formula(o));
  if (!has_host_kernel(parameter)) return rule;
  rule.apply = [o](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor&) {
    const auto numbers_at = [&](std::size_t i) {
      const double step = *lists.steps[i].const_data_ptr<float>();
      return AdagradNumbers{static_cast<float>(lr / (1 + (step - 1) * o.lr_decay)), static_cast<float>(o.eps)};
    };
    elements_on_host(lists, o.weight_decay, grad_scale, numbers_at, best_kernels<ElementKernels>()->adagrad);
  };
  return rule;
}

UpdateRule rule_of(const LionOptions& o, const torch::Tensor& parameter) {
  UpdateRule rule{{{"exp_avg"}}, false, AdamState::full, {}};
  rule.apply = by_formula(lion_formula(o));
  if (const auto* library = gpu_kernels_for(parameter); library != nullptr) {
    rule.apply = [o, library](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                              const MaybeTensor& found_inf) {
      lion_on_gpu(*library, gpu_options(o, lr), lists, grad_scale, found_inf);
    };
  }
  if (!has_host_kernel(parameter)) return rule;
  rule.apply = [o](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor&) {
    elements_on_host(
        lists, /*l2=*/0, grad_scale, [&](std::size_t) { return numbers_of(o, lr); },
        best_kernels<ElementKernels>()->lion);
  };
  return rule;
}

}  // namespace vernier
