#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DynamicCast.h>
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

// Returns for each row 1, or 0 if its target is ignored, and the class that gather() reads, or 0 if it is ignored.
std::pair<at::Tensor, at::Tensor> choices(const at::Tensor& target, std::int64_t ignored) {
  const auto counts = target.ne(ignored);
  return {counts, (target * counts).unsqueeze(1)};
}

double share_of(const at::Tensor& target, std::int64_t reduction, std::int64_t ignored) {
  if (reduction != at::Reduction::Mean) return 1;
  const auto* targets = target.const_data_ptr<std::int64_t>();
  return 1 / static_cast<double>(target.numel() - std::count(targets, targets + target.numel(), ignored));
}

// vernier::cross_entropy returns the loss, and the log softmax for backward. It is below autograd, so those who record
// operators see it. LibTorch's operators compute what the kernels do not take.
std::tuple<at::Tensor, at::Tensor> forward_operator(const at::Tensor& x, const at::Tensor& target,
                                                    std::int64_t reduction, std::int64_t ignored) {
  if (!takes_classes(x, target, ignored)) {
    const auto y = at::_log_softmax(x, 1, false);
    const auto [counts, chosen] = choices(target, ignored);
    return {(y.gather(1, chosen).squeeze(1) * counts).sum() * -share_of(target, reduction, ignored), y};
  }
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
  return {at::scalar_tensor(reduction == at::Reduction::Mean ? sum / counted : sum, x.options()), y};
}

// The same as the kernels, with a derivative itself. of_y: the gradient of the log softmax y.
at::Tensor by_operators(const at::Tensor& slope, const at::Tensor& of_y, const at::Tensor& y, const at::Tensor& target,
                        std::int64_t ignored) {
  auto dx = of_y.defined() ? at::_log_softmax_backward_data(of_y, y, 1, y.scalar_type()) : at::zeros_like(y);
  if (!slope.defined()) return dx;
  const auto [counts, classes] = choices(target, ignored);
  const auto chosen = at::zeros_like(y).scatter_(1, classes, 1);
  return dx + (y.exp() - chosen) * counts.unsqueeze(1) * slope;
}

// vernier::cross_entropy_backward: the gradient of x. slope: that of the loss.
at::Tensor backward_operator(const at::Tensor& slope, const at::Tensor& y, const at::Tensor& target,
                             std::int64_t reduction, std::int64_t ignored) {
  const auto share = share_of(target, reduction, ignored);
  if (!takes_classes(y, target, ignored)) return by_operators(slope * share, {}, y, target, ignored);
  auto dx = at::empty_like(y);
  // Read in memory, because who watches operators would see a wait for the device in at::item().
  const auto above = c10::fetch_and_cast<double>(slope.scalar_type(), slope.const_data_ptr());
  const auto factor = static_cast<float>(above * share);
  const auto* targets = target.const_data_ptr<std::int64_t>();
  with_row_kernels(y.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = y.const_data_ptr<Element>();
    auto* const to = dx.template mutable_data_ptr<Element>();
    Chunks({y.size(0), y.size(1)}).for_each([&](auto start, auto row, const Rows& part, auto) {
      kernels.cross_entropy_backward(part, from + start, targets + row, ignored, factor, to + start);
    });
  });
  return dx;
}

TORCH_LIBRARY_FRAGMENT(vernier, library) {
  library.def("cross_entropy(Tensor x, Tensor target, int reduction, int ignored) -> (Tensor, Tensor)");
  library.def("cross_entropy_backward(Tensor slope, Tensor y, Tensor target, int reduction, int ignored) -> Tensor");
  library.impl("cross_entropy", c10::DispatchKey::CPU, &forward_operator);
  library.impl("cross_entropy_backward", c10::DispatchKey::CPU, &backward_operator);
}

template <class Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

struct CrossEntropy final : torch::autograd::Function<CrossEntropy> {
  // The loss, and the log softmax, which is for the second derivative.
  static variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& target,
                               std::int64_t reduction, std::int64_t ignored) {
    static const auto compute = operator_named<decltype(forward_operator)>("vernier::cross_entropy");
    const at::AutoDispatchBelowAutograd below;
    auto [loss, y] = compute.call(x, target, reduction, ignored);
    context->save_for_backward({y, target});
    context->saved_data["ignored"] = ignored;
    context->saved_data["reduction"] = reduction;
    context->set_materialize_grads(false);
    return {loss, y};
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& above) {
    const auto saved = context->get_saved_variables();
    const auto &y = saved[0], &target = saved[1];
    const auto ignored = context->saved_data["ignored"].toInt(), reduction = context->saved_data["reduction"].toInt();
    if (!above[0].defined() && !above[1].defined()) return variable_list(4);
    if (at::GradMode::is_enabled() || above[1].defined()) {
      const auto share = share_of(target, reduction, ignored);
      return {
          by_operators(above[0].defined() ? above[0] * share : at::Tensor(), above[1], y, target, ignored), {}, {}, {}};
    }
    static const auto compute = operator_named<decltype(backward_operator)>("vernier::cross_entropy_backward");
    const at::AutoDispatchBelowAutograd below;
    return {compute.call(above[0], y, target, reduction, ignored), {}, {}, {}};
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
