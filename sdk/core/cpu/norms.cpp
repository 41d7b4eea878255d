#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "base/gradients_of_operators.h"
#include "row_operators.h"
#include "rows.h"

namespace vernier {

namespace {

using torch::autograd::variable_list;

bool is_given(const Parameter& parameter) {
  return parameter && parameter->defined();
}

// True if x ends in `shape`, and the parameters have it, in one dtype: that of x or float32.
bool takes(const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight, const Parameter& bias) {
  const auto dims = static_cast<std::int64_t>(shape.size());
  if (!may_compute_rows() || !is_plain(x) || dims == 0 || x.dim() < dims) return false;
  if (x.sizes().slice(static_cast<std::size_t>(x.dim() - dims)) != shape) return false;
  const auto fits = [&](const Parameter& parameter) {
    return !is_given(parameter) ||
           (is_plain(*parameter) && parameter->sizes() == shape &&
            (parameter->scalar_type() == x.scalar_type() || parameter->scalar_type() == at::kFloat));
  };
  // LibTorch refuses a bias alone in another dtype.
  const auto of_bias = is_given(weight) ? weight->scalar_type() : x.scalar_type();
  return fits(weight) && fits(bias) && (!is_given(bias) || bias->scalar_type() == of_bias);
}
bool takes_backward(const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight,
                    const Parameter& bias) {
  return has_plain_numbers(dy) && takes(x, shape, weight, bias) && dy.sizes() == x.sizes() &&
         dy.scalar_type() == x.scalar_type();
}

at::Tensor in_floats(const Parameter& parameter) {
  return is_given(parameter) ? parameter->to(at::kFloat) : at::Tensor();
}
template <class Element = float>
const Element* numbers_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<Element>() : nullptr;
}

// One float32 number for each row.
at::Tensor empty_for_rows(const at::Tensor& x, at::IntArrayRef shape) {
  auto sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(shape.size()), sizes.end(), 1);
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

struct Gradients {
  at::Tensor x, weight, bias;
};

// mean: undefined for RMSNorm. Weights without a dtype are not differentiated.
Gradients differentiate(const at::Tensor& above, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& mean,
                        const at::Tensor& inverse, const Parameter& weight, std::optional<at::ScalarType> of_weight,
                        std::optional<at::ScalarType> of_bias) {
  const auto all = rows_of(x, shape.size());
  // Each chunk sums up the gradients of weight and bias by itself: at most 64, of no less than 16 rows.
  const Chunks chunks(all, std::clamp<std::int64_t>(all.count / 16, 1, 64));
  const auto columns = chunks.all.columns;
  const auto sums = [&](bool wanted) {
    return wanted ? at::empty({chunks.count(), columns}, x.options().dtype(at::kFloat)) : at::Tensor();
  };
  const auto weight_sums = sums(of_weight.has_value()), bias_sums = sums(of_bias.has_value());
  const auto dy = above.contiguous(), scale = in_floats(weight), dx = at::empty_like(x);
  const auto means = mean.defined() ? mean.to(at::kFloat) : at::Tensor(), inverses = inverse.to(at::kFloat);
  const auto part_of = [&](const at::Tensor& all, std::int64_t chunk) -> float* {
    if (!all.defined()) return nullptr;
    auto* const part = all.mutable_data_ptr<float>() + chunk * columns;
    std::fill_n(part, columns, 0.0F);
    return part;
  };
  Gradients gradients{dx, {}, {}};
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto *from = numbers_of<Element>(x), *slopes = numbers_of<Element>(dy);
    const auto *factors = numbers_of(scale), *middles = numbers_of(means), *scales = numbers_of(inverses);
    auto* const to = dx.template mutable_data_ptr<Element>();
    chunks.for_each([&](auto start, auto row, const Rows& rows, auto chunk) {
      kernels.norm_backward(rows, slopes + start, from + start, factors, middles == nullptr ? nullptr : middles + row,
                            scales + row, to + start, part_of(weight_sums, chunk), part_of(bias_sums, chunk));
    });
    const auto total = [&](const at::Tensor& all, std::optional<at::ScalarType> dtype) {
      if (!all.defined()) return at::Tensor();
      const auto sum = at::empty(shape, all.options());
      kernels.sum_of_rows({chunks.count(), columns}, numbers_of(all), sum.template mutable_data_ptr<float>());
      return sum.to(*dtype);
    };
    gradients.weight = total(weight_sums, of_weight);
    gradients.bias = total(bias_sums, of_bias);
  });
  return gradients;
}

std::tuple<at::Tensor, at::Tensor> rms_normed(const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight,
                                              std::optional<double> eps) {
  if (!takes(x, shape, weight, {})) return at::compositeimplicitautograd::_fused_rms_norm(x, shape, weight, eps);
  auto y = at::empty_like(x), inverse = empty_for_rows(x, shape);
  const auto scale = in_floats(weight);
  const auto least = static_cast<float>(eps.value_or(std::numeric_limits<float>::epsilon()));
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = numbers_of<Element>(x);
    auto* const to = y.template mutable_data_ptr<Element>();
    const auto* factors = numbers_of(scale);
    auto* const inverses = inverse.mutable_data_ptr<float>();
    Chunks(rows_of(x, shape.size())).for_each([&](auto start, auto row, const Rows& rows, auto) {
      kernels.rms_norm(rows, from + start, factors, least, to + start, inverses + row);
    });
  });
  return {y, inverse};
}

struct RmsNorm final : torch::autograd::Function<RmsNorm> {
  static variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Parameter& weight,
                               const std::vector<std::int64_t>& shape, std::optional<double> eps) {
    const auto [y, inverse] = rms_normed(x, shape, weight, eps);
    context->set_materialize_grads(false);
    context->save_for_backward({x, weight.value_or(at::Tensor()), inverse});
    context->saved_data["shape"] = shape;
    context->saved_data["eps"] = eps;
    return {y, inverse};
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& above) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& weight = saved[1];
    const auto shape = context->saved_data["shape"].toIntVector();
    const bool of_weight = weight.defined() && context->needs_input_grad(1);
    if (at::GradMode::is_enabled() || above[1].defined() || !takes_backward(above[0], x, shape, weight, {})) {
      const auto gradients = gradients_of_operators({x, weight}, above, [&](const variable_list& inputs) {
        const auto [y, inverse] = at::compositeimplicitautograd::_fused_rms_norm(
            inputs[0], shape, inputs[1].defined() ? Parameter(inputs[1]) : std::nullopt,
            context->saved_data["eps"].toOptional<double>());
        return variable_list{y, inverse};
      });
      return {gradients[0], gradients[1], {}, {}};
    }
    const auto gradients = differentiate(above[0], x, shape, {}, saved[2], weight,
                                         of_weight ? std::optional(weight.scalar_type()) : std::nullopt, {});
    return {gradients.x, gradients.weight, {}, {}};
  }
};

// Above autograd, as LibTorch's: what is not taken is differentiated operator by operator.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight,
                                            std::optional<double> eps) {
  const bool has_tangent = x._fw_grad(0).defined() || (is_given(weight) && weight->_fw_grad(0).defined());
  if (!takes(x, shape, weight, {}) || has_tangent)
    return at::compositeimplicitautograd::_fused_rms_norm(x, shape, weight, eps);
  const auto outputs = RmsNorm::apply(x, is_given(weight) ? weight : std::nullopt, shape.vec(), eps);
  return {outputs[0], outputs[1]};
}

}  // namespace

Three layer_norm(const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight, const Parameter& bias,
                 double eps) {
  if (!takes(x, shape, weight, bias)) return at::native::layer_norm_cpu(x, shape, weight, bias, eps);
  auto y = at::empty_like(x), mean = empty_for_rows(x, shape), inverse = empty_for_rows(x, shape);
  const auto scale = in_floats(weight), shift = in_floats(bias);
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = numbers_of<Element>(x);
    auto* const to = y.template mutable_data_ptr<Element>();
    const auto *factors = numbers_of(scale), *terms = numbers_of(shift);
    auto *means = mean.mutable_data_ptr<float>(), *inverses = inverse.mutable_data_ptr<float>();
    Chunks(rows_of(x, shape.size())).for_each([&](auto start, auto row, const Rows& rows, auto) {
      kernels.layer_norm(rows, from + start, factors, terms, static_cast<float>(eps), to + start, means + row,
                         inverses + row);
    });
  });
  return {y, mean, inverse};
}

Three layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& mean,
                          const at::Tensor& inverse, const Parameter& weight, const Parameter& bias,
                          std::array<bool, 3> wanted) {
  if (!takes_backward(dy, x, shape, weight, bias)) {
    // LibTorch's statistics have the dtype of the parameters.
    const auto dtype = (is_given(weight) ? *weight : is_given(bias) ? *bias : x).scalar_type();
    return at::native::layer_norm_backward_cpu(dy, x, shape, mean.to(dtype), inverse.to(dtype), weight, bias, wanted);
  }
  const auto dtype = is_given(weight) ? weight->scalar_type() : is_given(bias) ? bias->scalar_type() : x.scalar_type();
  const auto of = [&](bool is_wanted) { return is_wanted ? std::optional(dtype) : std::nullopt; };
  auto gradients = differentiate(dy, x, shape, mean, inverse, weight, of(wanted[1]), of(wanted[2]));
  return {wanted[0] ? gradients.x : at::Tensor(), gradients.weight, gradients.bias};
}

void register_rms_norm(torch::Library& library) {
  constexpr auto key = c10::DispatchKey::AutogradCPU;
  static auto* above = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  above->impl("_fused_rms_norm", &rms_norm);
  library.impl("_fused_rms_norm", &rms_normed);
}

}  // namespace vernier
