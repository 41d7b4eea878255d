// Shared by the operators over rows: which tensors they take, with which kernels, and in which chunks.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "base/kernels.h"
#include "base/parallel.h"
#include "cpu/kernels/row_kernel.h"
#include "row_operators.h"

namespace vernier {

// Has numbers to be read in memory as they are: above autograd a tensor may have a negative bit or none at all, and a
// gradient be undefined.
inline bool has_plain_numbers(const at::Tensor& x) {
  return x.defined() && !x.is_neg() && !x._is_zerotensor();
}

inline bool is_plain(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  return has_plain_numbers(x) && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
         x.is_contiguous() && x.numel() > 0;
}

// Calls body(Element{}) for float32, bfloat16 or float16.
template <class Body>
void with_element(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) return body(float{});
  dtype == at::kBFloat16 ? body(c10::BFloat16{}) : body(c10::Half{});
}

// The same with body(kernels, Element{}).
template <class Body>
void with_row_kernels(at::ScalarType dtype, const Body& body) {
  with_element(dtype, [&]<class Element>(Element) { body(*best_kernels<RowKernels<Element>>(), Element{}); });
}

// The last dimensions of a tensor, side by side.
inline Rows rows_of(const at::Tensor& x, std::size_t dims) {
  std::int64_t columns = 1;
  for (std::size_t i = 0; i < dims; ++i) columns *= x.size(-1 - static_cast<std::int64_t>(i));
  return {x.numel() / columns, columns};
}

// Rows cut into chunks. The cuts depend on the shape alone, so sums over chunks have the same bits on any number of
// threads.
struct Chunks {
  Rows all;
  std::int64_t rows;  // rows of a chunk
  explicit Chunks(const Rows& whole, std::int64_t most = std::numeric_limits<std::int64_t>::max())
      : all(whole),
        rows(std::max({std::int64_t{1}, worth / whole.columns, whole.count / most + (whole.count % most != 0)})) {}

  std::int64_t count() const { return (all.count + rows - 1) / rows; }
  // Calls body(first element, first row, rows, chunk), on several threads where that pays.
  template <class Body>
  void for_each(const Body& body) const {
    for_each_chunk(static_cast<std::size_t>(count()), /*chunks_a_thread=*/2, [&](std::size_t i) {
      const auto chunk = static_cast<std::int64_t>(i), row = chunk * rows;
      body(row * all.columns, row, Rows{std::min(rows, all.count - row), all.columns}, chunk);
    });
  }

 private:
  static constexpr std::int64_t worth = 8192;  // elements: a second thread saves time from about so many on
};

}  // namespace vernier
