#include "row_operators.h"

#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>

#include "rows.h"

namespace vernier {

namespace {

const std::atomic<bool>* is_switched_on = nullptr;

bool takes(const at::Tensor& x, std::int64_t dim) {
  return may_compute_rows() && is_plain(x) && x.dim() > 0 && (dim == -1 || dim == x.dim() - 1);
}
bool takes(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  return takes(y, dim) && is_plain(dy) && dy.sizes() == y.sizes() && dy.scalar_type() == y.scalar_type() &&
         dtype == y.scalar_type();
}

// The kernel that `of` gives, over the last dimension.
template <class Of>
at::Tensor row_by_row(const at::Tensor& x, const Of& of) {
  auto y = at::empty_like(x);
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = x.const_data_ptr<Element>();
    auto* to = y.mutable_data_ptr<Element>();
    Chunks(rows_of(x, 1)).for_each([&](auto start, auto, const Rows& rows, auto) {
      of(kernels)(rows, from + start, to + start);
    });
  });
  return y;
}
template <class Of>
at::Tensor row_by_row(const at::Tensor& dy, const at::Tensor& y, const Of& of) {
  auto dx = at::empty_like(y);
  with_row_kernels(y.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto *above = dy.const_data_ptr<Element>(), *from = y.const_data_ptr<Element>();
    auto* to = dx.mutable_data_ptr<Element>();
    Chunks(rows_of(y, 1)).for_each([&](auto start, auto, const Rows& rows, auto) {
      of(kernels)(rows, above + start, from + start, to + start);
    });
  });
  return dx;
}

}  // namespace

void use_row_operators(const std::atomic<bool>& in_use) {
  is_switched_on = &in_use;
}
bool may_compute_rows() {
  return is_switched_on != nullptr && *is_switched_on && (has_avx512() || has_avx2());
}

at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  if (half_to_float || !takes(x, dim)) return at::cpu::_log_softmax(x, dim, half_to_float);
  return row_by_row(x, [](const auto& kernels) { return kernels.log_softmax; });
}
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  if (!takes(dy, y, dim, dtype)) return at::cpu::_log_softmax_backward_data(dy, y, dim, dtype);
  return row_by_row(dy, y, [](const auto& kernels) { return kernels.log_softmax_backward; });
}
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  if (half_to_float || !takes(x, dim)) return at::cpu::_softmax(x, dim, half_to_float);
  return row_by_row(x, [](const auto& kernels) { return kernels.softmax; });
}

}  // namespace vernier
