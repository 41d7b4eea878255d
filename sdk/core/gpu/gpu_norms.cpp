#include "gpu_norms.h"

#include <ATen/ATen.h>
#include <ATen/ops/layer_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <limits>
#include <optional>

#include "base/gradients_of_operators.h"

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

Tensor or_empty(const Tensor& tensor, const Tensor& x) {
  return tensor.defined() ? tensor : at::empty({0}, x.options());
}
Given or_none(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? Given(tensor) : Given();
}

// branch, weight and bias: empty if there are none, because apply() takes no undefined tensors. Returns y, and the sum
// if there is a branch.
struct NormFunction final : torch::autograd::Function<NormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& branch, const Tensor& weight,
                               const Tensor& bias, double eps, bool is_rms, torch::Dtype dtype,
                               const gpu::Library* library) {
    auto input = input_of(x, weight, bias, eps, is_rms, dtype);
    if (branch.numel() > 0) input.branch = branch.detach().contiguous();
    const auto normed = norm_on_gpu(*library, input);
    context->save_for_backward({input.branch.defined() ? normed.sum : x, weight, bias, normed.mean, normed.inverse});
    context->saved_data["eps"] = eps;
    context->saved_data["is_rms"] = is_rms;
    context->saved_data["dtype"] = static_cast<std::int64_t>(dtype);
    context->saved_data["library"] = reinterpret_cast<std::int64_t>(library);
    return input.branch.defined() ? variable_list{normed.y, normed.sum} : variable_list{normed.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    const double eps = context->saved_data["eps"].toDouble();
    const bool is_rms = context->saved_data["is_rms"].toBool();
    const auto dtype = static_cast<torch::Dtype>(context->saved_data["dtype"].toInt());
    const auto* const library = reinterpret_cast<const gpu::Library*>(context->saved_data["library"].toInt());
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto of_sum = slopes.size() > 1 ? slopes[1] : Tensor();
    if (at::GradMode::is_enabled()) {
      auto found = gradients_of_operators({x, weight, bias}, {slopes[0], of_sum}, [&](const variable_list& inputs) {
        const c10::SymInt columns = inputs[0].size(-1);
        const auto &normed = inputs[0],
                   y = by_operators(normed, columns, or_none(inputs[1]), or_none(inputs[2]), eps, is_rms);
        return of_sum.defined() ? variable_list{y.to(dtype), normed} : variable_list{y.to(dtype)};
      });
      return {found[0], of_sum.defined() ? found[0].to(dtype) : Tensor(), found[1], found[2], {}, {}, {}, {}};
    }
    const auto gradients = norm_backward_on_gpu(*library, input_of(x, weight, bias, eps, is_rms, dtype),
                                                {{}, saved[3], saved[4]}, slopes[0].to(dtype).contiguous(),
                                                of_sum.defined() ? of_sum.to(x.scalar_type()).contiguous() : of_sum);
    const auto of = [&](const Tensor& parameter, const Tensor& gradient) {
      return parameter.numel() > 0 ? gradient.to(parameter.scalar_type()) : Tensor();
    };
    return {gradients.x, gradients.branch, of(weight, gradients.weight), of(bias, gradients.bias), {}, {}, {}, {}};
  }

 private:
  static NormInput input_of(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool is_rms,
                            torch::Dtype dtype) {
    const auto wide = [](const Tensor& given) {
      return given.numel() > 0 ? given.detach().to(torch::kFloat32).contiguous() : Tensor();
    };
    return {x.detach().contiguous(), wide(weight), wide(bias), x.size(-1), eps, is_rms, dtype};
  }
};

Tensor norm(const Tensor& x, c10::SymIntArrayRef shape, const Given& weight, const Given& bias, double eps,
            bool is_rms) {
  const NormInput input{x,     weight.value_or(Tensor()), bias.value_or(Tensor()), x.dim() > 0 ? x.size(-1) : 0, eps,
                        is_rms};
  const auto* const library = shape.size() == 1 && shape[0] == input.columns ? library_for(input) : nullptr;
  return library != nullptr ? norm_with_gradients(*library, input).y
                            : by_operators(x, shape, weight, bias, eps, is_rms);
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
  const bool adds = input.branch.defined();
  const Normed normed{at::empty_like(x, x.options().dtype(input.dtype)), input.is_rms ? Tensor() : of_rows(), of_rows(),
                      adds ? at::empty_like(x) : Tensor()};
  const gpu::NormRows all{x.const_data_ptr(),
                          adds ? input.branch.const_data_ptr() : nullptr,
                          adds ? normed.sum.mutable_data_ptr() : nullptr,
                          normed.y.mutable_data_ptr(),
                          kind_of(x.scalar_type()),
                          kind_of(input.dtype),
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
                                   const Tensor& slopes, const Tensor& sum_slopes) {
  const auto& x = input.x;
  const c10::DeviceGuard guard(x.device());
  const auto options = x.options().dtype(torch::kFloat32);
  const auto of_columns = [&] { return at::empty({input.columns}, options); };
  const bool adds = sum_slopes.defined();
  const NormGradients to{at::empty_like(x), of_columns(), input.bias.defined() ? of_columns() : Tensor(),
                         adds ? at::empty_like(slopes) : Tensor()};
  const auto scratch = at::empty({2 * gpu::norm_parts * input.columns}, options);
  const gpu::NormSlopes all{slopes.const_data_ptr(),
                            x.const_data_ptr(),
                            adds ? sum_slopes.const_data_ptr() : nullptr,
                            to.x.mutable_data_ptr(),
                            adds ? to.branch.mutable_data_ptr() : nullptr,
                            kind_of(x.scalar_type()),
                            kind_of(input.dtype),
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

Normed norm_with_gradients(const gpu::Library& library, const NormInput& input) {
  const auto& x = input.x;
  const auto outputs = NormFunction::apply(x, or_empty(input.branch, x), or_empty(input.weight, x),
                                           or_empty(input.bias, x), input.eps, input.is_rms, input.dtype, &library);
  return {outputs[0], {}, {}, input.branch.defined() ? outputs[1] : Tensor()};
}

const gpu::Library* library_for(const NormInput& input) {
  const auto& x = input.x;
  const auto is_known = [](torch::Dtype dtype) {
    return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kHalf;
  };
  const auto fits = [&](const Tensor& given, torch::Dtype dtype, at::IntArrayRef shape) {
    return !given.defined() ||
           (is_plain(given) && given.scalar_type() == dtype && given.sizes() == shape && given.device() == x.device());
  };
  const bool is_taken = is_plain(x) && x.numel() > 0 && x.dim() > 0 && input.columns <= gpu::most_norm_columns &&
                        is_known(x.scalar_type()) && is_known(input.dtype) &&
                        fits(input.weight, x.scalar_type(), input.columns) &&
                        fits(input.bias, x.scalar_type(), input.columns) && fits(input.branch, input.dtype, x.sizes());
  return is_taken ? gpu_library(x.device()) : nullptr;
}

// Returns whether a sum with a branch in bfloat16, its norm, and the gradients have the bits of sum, norm and cast.
static bool is_added_as_apart(const gpu::Library& library, const NormInput& input, const Tensor& slopes) {
  auto fused = input, apart = input;
  fused.branch = slopes.to(fused.dtype = torch::kBFloat16);
  apart.x = input.x + fused.branch;
  const auto ours = norm_on_gpu(library, fused), right = norm_on_gpu(library, apart);
  fused.x = ours.sum;
  const auto gradients = norm_backward_on_gpu(library, fused, ours, fused.branch, slopes);
  const auto parts = norm_backward_on_gpu(library, apart, right, fused.branch.to(torch::kFloat32));
  return at::equal(ours.sum, apart.x) && at::equal(ours.y, right.y.to(fused.dtype)) &&
         at::equal(gradients.x, parts.x + slopes) && at::equal(gradients.branch, gradients.x.to(fused.dtype)) &&
         at::equal(gradients.weight, parts.weight);
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
    if (!is_added_as_apart(library, input, slopes.to(device))) return false;
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
