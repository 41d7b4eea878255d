#include "row_operators.h"

#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm_native.h>

#include <algorithm>

#include "attention_kernel.h"
#include "optim/parallel.h"
#include "row_kernel.h"

namespace vernier {

namespace {

const std::atomic<bool>* is_switched_on = nullptr;

bool is_plain(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() > 0;
}
bool may_compute() {
  return is_switched_on != nullptr && *is_switched_on && has_avx512();
}
const float* numbers_of(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr<float>() : nullptr;
}
bool is_plain_or_missing(const std::optional<at::Tensor>& tensor) {
  return !tensor || !tensor->defined() || is_plain(*tensor);
}

// Calls body(first element, first row, rows) for chunks of rows, on several threads where that pays.
template <class Body>
void in_chunks(const Rows& all, const Body& body) {
  constexpr std::int64_t elements = 8192;  // a second thread saves time from about so many on
  const auto in_chunk = std::max<std::int64_t>(1, elements / all.columns);
  const auto chunks = static_cast<std::size_t>((all.count + in_chunk - 1) / in_chunk);
  for_each_chunk(chunks, /*chunks_a_thread=*/2, [&](std::size_t i) {
    const auto row = static_cast<std::int64_t>(i) * in_chunk;
    body(row * all.columns, row, Rows{std::min(in_chunk, all.count - row), all.columns});
  });
}

Rows rows_of(const at::Tensor& x, std::size_t dims) {
  std::int64_t columns = 1;
  for (std::size_t i = 0; i < dims; ++i) columns *= x.size(-1 - static_cast<std::int64_t>(i));
  return {x.numel() / columns, columns};
}

bool is_last(std::int64_t dim, const at::Tensor& x) {
  return x.dim() > 0 && (dim == -1 || dim == x.dim() - 1);
}

// kernel(rows, x, y) over the last dimension.
template <auto kernel>
at::Tensor row_by_row(const at::Tensor& x) {
  const auto y = at::empty_like(x);
  const auto* from = x.const_data_ptr<float>();
  auto* to = y.mutable_data_ptr<float>();
  in_chunks(rows_of(x, 1), [&](auto start, auto, const Rows& rows) { kernel(rows, from + start, to + start); });
  return y;
}
template <auto kernel>
at::Tensor row_by_row(const at::Tensor& dy, const at::Tensor& y) {
  const auto dx = at::empty_like(y);
  const auto *above = dy.const_data_ptr<float>(), *from = y.const_data_ptr<float>();
  auto* to = dx.mutable_data_ptr<float>();
  in_chunks(rows_of(y, 1),
            [&](auto start, auto, const Rows& rows) { kernel(rows, above + start, from + start, to + start); });
  return dx;
}

bool takes_softmax(const at::Tensor& x, std::int64_t dim) {
  return may_compute() && is_plain(x) && is_last(dim, x);
}
bool takes_softmax(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  return takes_softmax(y, dim) && is_plain(dy) && dy.sizes() == y.sizes() && dtype == at::kFloat;
}

bool takes_layer_norm(const at::Tensor& x, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias) {
  const bool fits = !shape.empty() && x.dim() >= static_cast<std::int64_t>(shape.size()) &&
                    x.sizes().slice(static_cast<std::size_t>(x.dim()) - shape.size()) == shape;
  const auto is_of_shape = [&](const auto& tensor) {
    return !tensor || !tensor->defined() || tensor->sizes() == shape;
  };
  return may_compute() && fits && is_plain(x) && is_plain_or_missing(weight) && is_plain_or_missing(bias) &&
         is_of_shape(weight) && is_of_shape(bias);
}

}  // namespace

void use_row_operators(const std::atomic<bool>& in_use) {
  is_switched_on = &in_use;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, at::IntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double eps) {
  if (!takes_layer_norm(x, shape, weight, bias)) return at::native::layer_norm_cpu(x, shape, weight, bias, eps);
  auto of_rows = x.sizes().vec();
  std::fill(of_rows.end() - static_cast<std::ptrdiff_t>(shape.size()), of_rows.end(), 1);
  const auto y = at::empty_like(x), mean = at::empty(of_rows, x.options()), inverse = at::empty(of_rows, x.options());
  const auto *from = x.const_data_ptr<float>(), *scale = numbers_of(weight), *shift = numbers_of(bias);
  auto *to = y.mutable_data_ptr<float>(), *means = mean.mutable_data_ptr<float>();
  auto* inverses = inverse.mutable_data_ptr<float>();
  in_chunks(rows_of(x, shape.size()), [&](auto start, auto row, const Rows& rows) {
    layer_norm_rows(rows, from + start, scale, shift, static_cast<float>(eps), to + start, means + row, inverses + row);
  });
  return {y, mean, inverse};
}

at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  return takes_softmax(x, dim) ? row_by_row<log_softmax_rows>(x) : at::cpu::_log_softmax(x, dim, half_to_float);
}
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  return takes_softmax(x, dim) ? row_by_row<softmax_rows>(x) : at::cpu::_softmax(x, dim, half_to_float);
}
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype) {
  return takes_softmax(dy, y, dim, dtype) ? row_by_row<log_softmax_rows_backward>(dy, y)
                                          : at::cpu::_log_softmax_backward_data(dy, y, dim, dtype);
}
}  // namespace vernier
