#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "row_operators.h"
#include "rows.h"

namespace vernier {

namespace {

using torch::autograd::variable_list;

// Logits [rows, classes] and the number of a class for each row; a target that LibTorch refuses is not taken.
bool takes_classes(const at::Tensor& x, const at::Tensor& target, std::int64_t ignored) {
  if (!may_compute_rows() || !is_plain(x) || x.dim() != 2 || target.dim() != 1 || target.scalar_type() != at::kLong ||
      !target.is_contiguous() || target.size(0) != x.size(0)) {
    return false;
  }
  const auto* targets = target.const_data_ptr<std::int64_t>();
  return std::all_of(targets, targets + target.numel(),
                     [&](auto i) { return i == ignored || (i >= 0 && i < x.size(1)); });
}

struct CrossEntropy final : torch::autograd::Function<CrossEntropy> {
  // The loss, and the log softmax, which is for the second derivative.
  static variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& target,
                               std::int64_t reduction, std::int64_t ignored) {
    const auto rows = x.size(0);
    const auto y = at::empty_like(x), all_losses = at::empty({rows}, x.options().dtype(at::kFloat));
    auto* const losses = all_losses.mutable_data_ptr<float>();
    const auto* targets = target.const_data_ptr<std::int64_t>();
    with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
      const auto* from = x.const_data_ptr<Element>();
      auto* const to = y.template mutable_data_ptr<Element>();
      Chunks({rows, x.size(1)}).for_each([&](auto start, auto row, const Rows& part, auto) {
        kernels.cross_entropy(part, from + start, targets + row, ignored, to + start, losses + row);
      });
    });
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += losses[row];
    const auto counted = static_cast<double>(rows - std::count(targets, targets + rows, ignored));
    const double share = reduction == at::Reduction::Mean ? 1 / counted : 1;
    context->save_for_backward({y, target});
    context->saved_data["ignored"] = ignored;
    context->saved_data["share"] = share;
    context->set_materialize_grads(false);
    return {at::scalar_tensor(reduction == at::Reduction::Mean ? sum / counted : sum, x.options()), y};
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& above) {
    const auto saved = context->get_saved_variables();
    const auto &y = saved[0], &target = saved[1];
    const auto ignored = context->saved_data["ignored"].toInt();
    const auto share = context->saved_data["share"].toDouble();
    if (!above[0].defined() && !above[1].defined()) return variable_list(4);
    if (at::GradMode::is_enabled() || above[1].defined()) {
      return {
          by_operators(above[0].defined() ? above[0] * share : at::Tensor(), above[1], y, target, ignored), {}, {}, {}};
    }
    auto dx = at::empty_like(y);
    const auto slope = static_cast<float>(above[0].item<double>() * share);
    const auto* targets = target.const_data_ptr<std::int64_t>();
    with_row_kernels(y.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
      const auto* from = y.const_data_ptr<Element>();
      auto* const to = dx.template mutable_data_ptr<Element>();
      Chunks({y.size(0), y.size(1)}).for_each([&](auto start, auto row, const Rows& part, auto) {
        kernels.cross_entropy_backward(part, from + start, targets + row, ignored, slope, to + start);
      });
    });
    return {dx, {}, {}, {}};
  }

 private:
  // Has a derivative itself: that of y is the above.
  static at::Tensor by_operators(const at::Tensor& slope, const at::Tensor& of_y, const at::Tensor& y,
                                 const at::Tensor& target, std::int64_t ignored) {
    auto dx = of_y.defined() ? at::_log_softmax_backward_data(of_y, y, 1, y.scalar_type()) : at::zeros_like(y);
    if (!slope.defined()) return dx;
    const auto counts = target.ne(ignored).unsqueeze(1);
    const auto chosen = at::zeros_like(y).scatter_(1, target.unsqueeze(1) * counts, 1);
    return dx + (y.exp() - chosen) * counts * slope;
  }
};

at::Tensor cross_entropy(const at::Tensor& x, const at::Tensor& target, const Parameter& weight, std::int64_t reduction,
                         std::int64_t ignored, double label_smoothing) {
  const bool is_reduced = reduction == at::Reduction::Mean || reduction == at::Reduction::Sum;
  if ((weight && weight->defined()) || label_smoothing != 0 || !is_reduced || x._fw_grad(0).defined() ||
      !takes_classes(x, target, ignored)) {
    return at::compositeimplicitautograd::cross_entropy_loss(x, target, weight, reduction, ignored, label_smoothing);
  }
  return CrossEntropy::apply(x, target, reduction, ignored).front();
}

}  // namespace

void register_cross_entropy(torch::Library& library) {
  constexpr auto key = c10::DispatchKey::AutogradCPU;
  static auto* above = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  above->impl("cross_entropy_loss", &cross_entropy);
  library.impl("cross_entropy_loss", &cross_entropy);
}

}  // namespace vernier
