#include "gpu_norms.h"

#include <ATen/ATen.h>
#include <ATen/ops/layer_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <limits>
#include <optional>

namespace vernier {

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Given = std::optional<Tensor>;

const float* numbers_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool is_plain(const Tensor& tensor) {
  return tensor.layout() == torch::kStrided && !tensor.is_neg() && !tensor._fw_grad(0).defined();
}

// LibTorch's operators, which have derivatives of any order.
Tensor by_operators(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, const Given& bias, double eps,
                    bool is_rms) {
  return is_rms ? at::compositeimplicitautograd::rms_norm_symint(x, shape, weight, eps)
                : at::compositeimplicitautograd::layer_norm_symint(x, shape, weight, bias, eps, true);
}

bool takes(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, const Given& bias) {
  const auto dtype = x.scalar_type();
  if (!is_plain(x) || x.numel() == 0 || shape.size() != 1 || x.dim() == 0 || shape[0] != x.size(-1) ||
      x.size(-1) > gpu::most_norm_columns) {
    return false;
  }
  if (dtype != torch::kFloat32 && dtype != torch::kBFloat16 && dtype != torch::kHalf) return false;
  const auto fits = [&](const Given& given) {
    return !given || !given->defined() ||
           (is_plain(*given) && given->scalar_type() == dtype && given->dim() == 1 && given->size(0) == x.size(-1) &&
            given->device() == x.device());
  };
  return fits(weight) && fits(bias) && gpu_library(x.device()) != nullptr;
}

// bias and weight: empty if there are none, because apply() takes no undefined tensors.
struct NormFunction final : torch::autograd::Function<NormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        bool is_rms) {
    const auto input = input_of(x, weight, bias, eps, is_rms);
    const auto normed = norm_on_gpu(*gpu_library(x.device()), input);
    context->save_for_backward({x, weight, bias, normed.mean, normed.inverse});
    context->saved_data["eps"] = eps;
    context->saved_data["is_rms"] = is_rms;
    return normed.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    const double eps = context->saved_data["eps"].toDouble();
    const bool is_rms = context->saved_data["is_rms"].toBool();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    if (at::GradMode::is_enabled()) return again(*context, {x, weight, bias}, slopes[0], eps, is_rms);
    const auto input = input_of(x, weight, bias, eps, is_rms);
    const auto gradients = norm_backward_on_gpu(*gpu_library(x.device()), input, {{}, saved[3], saved[4]},
                                                slopes[0].to(x.scalar_type()).contiguous());
    const auto of = [&](const Tensor& parameter, const Tensor& gradient) {
      return parameter.numel() > 0 ? gradient.to(parameter.scalar_type()) : Tensor();
    };
    return {gradients.x, of(weight, gradients.weight), of(bias, gradients.bias), {}, {}};
  }

 private:
  static NormInput input_of(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool is_rms) {
    const auto wide = [](const Tensor& given) {
      return given.numel() > 0 ? given.detach().to(torch::kFloat32).contiguous() : Tensor();
    };
    return {x.detach().contiguous(), wide(weight), wide(bias), x.size(-1), eps, is_rms};
  }

  // The gradients by LibTorch's operators: they have derivatives themselves.
  static variable_list again(AutogradContext& context, const variable_list& inputs, const Tensor& slopes, double eps,
                             bool is_rms) {
    const auto given = [](const Tensor& tensor) { return tensor.numel() > 0 ? Given(tensor) : Given(); };
    const c10::SymInt columns = inputs[0].size(-1);
    const auto y = by_operators(inputs[0], columns, given(inputs[1]), given(inputs[2]), eps, is_rms);
    variable_list leaves, results(5);
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!context.needs_input_grad(i) || inputs[i].numel() == 0) continue;
      leaves.push_back(inputs[i]);
      places.push_back(i);
    }
    const auto found = torch::autograd::grad({y}, leaves, {slopes}, /*retain_graph=*/true, /*create_graph=*/true);
    for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = found[i];
    return results;
  }
};

Tensor norm(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, const Given& bias, double eps,
            bool is_rms) {
  if (!takes(x, shape, weight, bias)) return by_operators(x, shape, weight, bias, eps, is_rms);
  const auto given = [&](const Given& tensor) {
    return tensor && tensor->defined() ? *tensor : at::empty({0}, x.options());
  };
  return NormFunction::apply(x, given(weight), given(bias), eps, is_rms);
}

Tensor layer_norm(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, const Given& bias, double eps,
                  bool) {
  return norm(x, shape, weight, bias, eps, false);
}
Tensor rms_norm(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, std::optional<double> eps) {
  if (!eps && x.scalar_type() == torch::kDouble)
    return at::compositeimplicitautograd::rms_norm_symint(x, shape, weight);
  return norm(x, shape, weight, {}, eps.value_or(std::numeric_limits<float>::epsilon()), true);
}

}  // namespace

Normed norm_on_gpu(const gpu::Library& library, const NormInput& input) {
  const auto& x = input.x;
  const c10::DeviceGuard guard(x.device());
  const auto rows = x.numel() / input.columns;
  const auto of_rows = [&] { return at::empty({rows}, x.options().dtype(torch::kFloat32)); };
  const Normed normed{at::empty_like(x), input.is_rms ? Tensor() : of_rows(), of_rows()};
  const gpu::NormRows all{x.const_data_ptr(),
                          normed.y.mutable_data_ptr(),
                          kind_of(x.scalar_type()),
                          rows,
                          input.columns,
                          numbers_of(input.weight),
                          numbers_of(input.bias),
                          static_cast<float>(input.eps),
                          input.is_rms ? nullptr : normed.mean.mutable_data_ptr<float>(),
                          normed.inverse.mutable_data_ptr<float>()};
  require_launched(library.norm(all, stream_of(x.device())), "norm");
  return normed;
}

NormGradients norm_backward_on_gpu(const gpu::Library& library, const NormInput& input, const Normed& normed,
                                   const Tensor& slopes) {
  const auto& x = input.x;
  const c10::DeviceGuard guard(x.device());
  const auto options = x.options().dtype(torch::kFloat32);
  const auto of_columns = [&] { return at::empty({input.columns}, options); };
  const NormGradients to{at::empty_like(x), of_columns(), input.bias.defined() ? of_columns() : Tensor()};
  const auto scratch = at::empty({2 * gpu::norm_parts * input.columns}, options);
  const gpu::NormSlopes all{slopes.const_data_ptr(),
                            x.const_data_ptr(),
                            to.x.mutable_data_ptr(),
                            kind_of(x.scalar_type()),
                            x.numel() / input.columns,
                            input.columns,
                            numbers_of(input.weight),
                            numbers_of(normed.mean),
                            normed.inverse.const_data_ptr<float>(),
                            to.weight.mutable_data_ptr<float>(),
                            to.bias.defined() ? to.bias.mutable_data_ptr<float>() : nullptr,
                            scratch.mutable_data_ptr<float>()};
  require_launched(library.norm_slopes(all, stream_of(x.device())), "norm_slopes");
  return to;
}

bool norms_of_rows_are_right(const gpu::Library& library, const c10::Device& device) {
  const c10::InferenceMode no_inference(false);  // the library may be opened in a prediction, or by an optimizer's step
  const at::AutoGradMode records(true);
  constexpr std::int64_t columns = 777;
  const auto numbers = [&](std::int64_t rows, double phase) {
    return at::sin(at::arange(rows * columns, torch::kFloat32) * 1.7 + phase).view({rows, columns});
  };
  const auto x = numbers(900, 0).requires_grad_(), slopes = numbers(900, 1);
  const auto weight = numbers(1, 2).view({columns}).requires_grad_(),
             bias = numbers(1, 3).view({columns}).requires_grad_();
  for (const bool is_rms : {false, true}) {
    const c10::SymInt shape = columns;
    const auto y = by_operators(x, shape, weight, is_rms ? Given() : Given(bias), 1e-5, is_rms);
    const auto right =
        torch::autograd::grad({y}, is_rms ? variable_list{x, weight} : variable_list{x, weight, bias}, {slopes});
    const NormInput input{x.detach().to(device),
                          weight.detach().to(device),
                          is_rms ? Tensor() : bias.detach().to(device),
                          columns,
                          1e-5,
                          is_rms};
    const auto ours = norm_on_gpu(library, input);
    const auto gradients = norm_backward_on_gpu(library, input, ours, slopes.to(device));
    const auto is_close = [](const Tensor& a, const Tensor& b) {
      return at::allclose(a.cpu(), b.detach(), 1e-4, 1e-4);
    };
    if (!is_close(ours.y, y) || !is_close(gradients.x, right[0]) || !is_close(gradients.weight, right[1])) return false;
    if (!is_rms && !is_close(gradients.bias, right[2])) return false;
  }
  return true;
}

void register_norms_on_gpu() {
  static auto* const library = [] {
    auto* above = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
    above->impl("layer_norm", &layer_norm);
    above->impl("rms_norm", &rms_norm);
    return above;
  }();
  (void)library;
}

}  // namespace vernier
