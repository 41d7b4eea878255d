#include "row_operators.h"

#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <vernier/fused_kernels.h>

#include "rows.h"

namespace vernier {

namespace {

bool takes(const at::Tensor& x, std::int64_t dim) {
  return may_compute_rows() && is_plain(x) && x.dim() > 0 && (dim == -1 || dim == x.dim() - 1);
}
bool takes(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  return takes(y, dim) && is_plain(dy) && dy.sizes() == y.sizes() && dy.scalar_type() == y.scalar_type() &&
         dtype == y.scalar_type();
}

// The kernel that `of` gives, over the last dimension of tensors of one shape.
template <class Of, class... Tensors>
at::Tensor row_by_row(const Of& of, const at::Tensor& x, const Tensors&... more) {
  auto y = at::empty_like(x);
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    auto* to = y.mutable_data_ptr<Element>();
    Chunks(rows_of(x, 1)).for_each([&](auto start, auto, const Rows& rows, auto) {
      of(kernels)(rows, x.const_data_ptr<Element>() + start, more.template const_data_ptr<Element>() + start...,
                  to + start);
    });
  });
  return y;
}

}  // namespace

bool may_compute_rows() {
  return fused_kernels() && has(Instructions::avx2);
}

at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  if (half_to_float || !takes(x, dim)) return at::cpu::_log_softmax(x, dim, half_to_float);
  return row_by_row([](const auto& kernels) { return kernels.log_softmax; }, x);
}
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  if (!takes(dy, y, dim, dtype)) return at::cpu::_log_softmax_backward_data(dy, y, dim, dtype);
  return row_by_row([](const auto& kernels) { return kernels.log_softmax_backward; }, dy, y);
}
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  if (half_to_float || !takes(x, dim)) return at::cpu::_softmax(x, dim, half_to_float);
  return row_by_row([](const auto& kernels) { return kernels.softmax; }, x);
}

}  // namespace vernier
