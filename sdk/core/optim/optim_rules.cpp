#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <utility>

#include "adam_host.h"
#include "adam_operators.h"
#include "block_quantisation.h"
#include "gpu_optimizers.h"
#include "optim_rule.h"

namespace vernier {

namespace {

template <class Options>
void require_adam(const Options& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "at least 0 and below 1");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "at least 0 and below 1");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  if (options.amsgrad && options.state != AdamState::full) {
    refuse("optimizer option amsgrad keeps a third average, which has no small kind: use AdamState::full");
  }
}

// A block's largest number costs more than it saves in small ones, which are often the delicate ones too. Blocks are
// runs of memory: in another layout than the usual a saved state would not say which elements are one.
constexpr std::int64_t least_for_eight_bit = 4096;
bool fits_eight_bit(const torch::Tensor& parameter) {
  return parameter.numel() >= least_for_eight_bit && parameter.is_contiguous();
}

AdamState kept_in(AdamState wanted, const torch::Tensor& parameter) {
  if (wanted == AdamState::full) return wanted;
  if (parameter.scalar_type() != torch::kFloat32) {
    refuse(c10::str("averages in ", wanted == AdamState::eight_bit ? "8 bits" : "bfloat16",
                    " are for float32 parameters, and one is ", parameter.scalar_type(),
                    ": give the optimizer float32 masters, or use AdamState::full"));
  }
  return wanted == AdamState::eight_bit && !fits_eight_bit(parameter) ? AdamState::full : wanted;
}

std::vector<Slot> averages(AdamState kept_in, bool amsgrad) {
  if (kept_in == AdamState::bfloat16) return {{"exp_avg", torch::kBFloat16}, {"exp_avg_sq", torch::kBFloat16}};
  if (kept_in == AdamState::eight_bit) {
    return {{"exp_avg", torch::kByte},
            {"exp_avg_sq", torch::kByte},
            {"exp_avg_absmax", torch::kFloat32, NumberFor::block},
            {"exp_avg_sq_absmax", torch::kFloat32, NumberFor::block}};
  }
  std::vector<Slot> slots{{"exp_avg"}, {"exp_avg_sq"}};
  if (amsgrad) slots.push_back({"max_exp_avg_sq"});
  return slots;
}

template <class Options>
void update_on_host(AdamState kept_in, const Options& o, const UpdateLists& lists, double lr,
                    const MaybeTensor& grad_scale) {
  const float scale = grad_scale ? *grad_scale->const_data_ptr<float>() : 1.0F;
  std::vector<HostTensor> tensors;
  tensors.reserve(lists.parameters.size());
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const auto step = *lists.steps[i].const_data_ptr<float>();
    CountedNoise noise(o.seed, lists.numbers[i]);
    noise.set_step(static_cast<std::uint32_t>(step));
    tensors.push_back({adam_numbers(o, lr, step, scale), noise, lists.parameters[i].numel(),
                       lists.parameters[i].data_ptr<float>(), lists.gradients[i].const_data_ptr<float>(),
                       lists.slots[0][i].data_ptr(), lists.slots[1][i].data_ptr()});
    if (kept_in != AdamState::eight_bit) continue;
    tensors.back().largest_avg = lists.slots[2][i].data_ptr<float>();
    tensors.back().largest_sq = lists.slots[3][i].data_ptr<float>();
  }
  adam_on_host(kept_in, tensors);
}

template <class Options, class Kernel>
UpdateRule adam_rule(const Options& o, const torch::Tensor& parameter, Kernel kernel) {
  const auto kept = kept_in(o.state, parameter);
  UpdateRule rule{averages(kept, o.amsgrad), true, kept, {}};
  if (parameter.is_cpu() && parameter.scalar_type() == torch::kFloat32 && !o.amsgrad) {
    rule.apply = [o, kept](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor&) {
      update_on_host(kept, o, lists, lr, grad_scale);
    };
  } else if (const auto* library = gpu_kernels_for(parameter); library != nullptr && !o.amsgrad) {
    rule.apply = [o, kept, library](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                                    const MaybeTensor& found_inf) {
      adam_on_gpu(*library, gpu_options(o, lr), kept, o.seed, lists, grad_scale, found_inf);
    };
  } else if (kept != AdamState::full) {
    rule.apply = [o, kept, kernel](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                                   const MaybeTensor& found_inf) {
      adam_by_operators(kept, o.seed, lists, found_inf,
                        [&](const auto& parameter, const auto& gradient, const auto& exp_avg, const auto& exp_avg_sq,
                            const auto& step) {
                          kernel(parameter, gradient, exp_avg, exp_avg_sq, at::TensorList(), step, lr, o.beta1, o.beta2,
                                 o.weight_decay, o.eps, false, o.maximize, grad_scale, found_inf);
                        });
    };
  } else {
    rule.apply = [o, kernel](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                             const MaybeTensor& found_inf) {
      kernel(lists.parameters, lists.gradients, lists.slots[0], lists.slots[1],
             o.amsgrad ? at::TensorList(lists.slots[2]) : at::TensorList(), lists.steps, lr, o.beta1, o.beta2,
             o.weight_decay, o.eps, o.amsgrad, o.maximize, grad_scale, found_inf);
    };
  }
  return rule;
}

// The first update of a parameter takes its gradient undampened, and on a GPU only the device knows which updates were
// skipped: hence the read.
std::pair<UpdateLists, UpdateLists> split_first(const UpdateLists& lists) {
  const auto steps = at::stack(lists.steps).cpu();
  UpdateLists first, later;
  first.slots.resize(1);
  later.slots.resize(1);
  for (std::size_t i = 0; i < lists.steps.size(); ++i) {
    auto& side = steps.const_data_ptr<float>()[i] > 1 ? later : first;
    side.parameters.push_back(lists.parameters[i]);
    side.gradients.push_back(lists.gradients[i]);
    side.slots[0].push_back(lists.slots[0][i]);
  }
  return {std::move(first), std::move(later)};
}

// LibTorch's CPU kernel leaves 16-bit weights alone where they fill a vector (pytorch/pytorch#191763). In float32,
// rounded when it is stored, as its GPU kernel and the mended one do.
bool is_passed_over(const torch::Tensor& parameter) {
  const auto dtype = parameter.scalar_type();
  return parameter.is_cpu() && (dtype == torch::kBFloat16 || dtype == torch::kFloat16);
}

void sgd(const SGDOptions& o, const UpdateLists& lists, double lr, bool first, const MaybeTensor& grad_scale,
         const MaybeTensor& found_inf) {
  if (lists.parameters.empty()) return;
  if (is_passed_over(lists.parameters.front())) {
    const auto wide = [](const torch::Tensor& tensor) { return TensorVector{tensor.to(torch::kFloat32)}; };
    for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
      UpdateLists one{wide(lists.parameters[i]), wide(lists.gradients[i]), {}, {}, {}};
      if (o.momentum != 0) one.slots.push_back(wide(lists.slots[0][i]));
      sgd(o, one, lr, first, grad_scale, found_inf);
      lists.parameters[i].copy_(one.parameters[0]);
      lists.gradients[i].copy_(one.gradients[0]);
      if (o.momentum != 0) lists.slots[0][i].copy_(one.slots[0][0]);
    }
    return;
  }
  at::_fused_sgd_(lists.parameters, lists.gradients,
                  o.momentum != 0 ? at::TensorList(lists.slots[0]) : at::TensorList(), o.weight_decay, o.momentum, lr,
                  o.dampening, o.nesterov, o.maximize, first, grad_scale, found_inf);
}

}  // namespace

torch::Tensor Slot::like(const torch::Tensor& parameter) const {
  const auto options = parameter.options().dtype(dtype.value_or(parameter.scalar_type()));
  if (each == NumberFor::element) return at::full_like(parameter, initial, options);
  if (each == NumberFor::tensor) return at::full({}, initial, options);
  if (each == NumberFor::block) return at::zeros({BlockQuantisation::blocks(parameter.numel())}, options);
  auto sizes = parameter.sizes().vec();
  sizes[sizes.size() - (each == NumberFor::row ? 1 : 2)] = 1;
  return at::full(sizes, initial, options);
}

void require(bool right, const char* option, double value, const char* range) {
  if (!right) refuse(c10::str("optimizer option ", option, " = ", value, " is out of range: it must be ", range));
}

void require_in_range(const AdamWOptions& options) {
  require_adam(options);
}

void require_in_range(const AdamOptions& options) {
  require_adam(options);
}

void require_in_range(const SGDOptions& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.momentum >= 0, "momentum", options.momentum, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    refuse("Nesterov momentum needs a momentum and no dampening");
}

UpdateRule rule_of(const AdamWOptions& options, const torch::Tensor& parameter) {
  return adam_rule(options, parameter, [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

UpdateRule rule_of(const AdamOptions& options, const torch::Tensor& parameter) {
  return adam_rule(options, parameter, [](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

UpdateRule rule_of(const SGDOptions& o, const torch::Tensor& parameter) {
  const bool dampens = o.momentum != 0 && o.dampening != 0;
  UpdateRule rule{{}, dampens, AdamState::full, {}};
  if (o.momentum != 0) rule.slots.push_back({"momentum_buffer"});
  if (const auto* library = gpu_kernels_for(parameter); library != nullptr) {
    rule.apply = [o, library](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                              const MaybeTensor& found_inf) {
      sgd_on_gpu(*library, gpu_options(o, lr), lists, grad_scale, found_inf);
    };
    return rule;
  }
  rule.apply = [o, dampens](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                            const MaybeTensor& found_inf) {
    // Without dampening the first update needs no care: a buffer of zeros turns into the gradient.
    if (!dampens) return sgd(o, lists, lr, false, grad_scale, found_inf);
    const auto [first, later] = split_first(lists);
    sgd(o, first, lr, true, grad_scale, found_inf);
    sgd(o, later, lr, false, grad_scale, found_inf);
  };
  return rule;
}

}  // namespace vernier
