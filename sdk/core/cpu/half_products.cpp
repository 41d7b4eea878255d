#include "half_products.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mv_compositeexplicitautograd_dispatch.h>
#include <vernier/fused_kernels.h>
#include <vernier/matmul.h>

#include "base/processor.h"
#include "cpu/one_thread.h"
#include "cpu/tasks.h"
#include "rows.h"

namespace vernier {

namespace {

// LibTorch's own answer: it multiplies 16 bits by oneDNN, which looks at the processor and at ONEDNN_MAX_CPU_ISA.
bool libtorch_multiplies(const char* operator_name) {
  const auto found = c10::Dispatcher::singleton().findSchema({operator_name, ""});
  if (!found) return false;
  torch::jit::Stack answer;
  found->callBoxed(answer);
  return answer.front().toBool();
}

// Matrices [count, rows, columns], with the elements of a row or of a column side by side.
class Stack {
 public:
  explicit Stack(const at::Tensor& matrices) : kept_(has_runs(matrices) ? matrices : matrices.contiguous()) {}

  // Converts a part of a matrix. Returns true if the result is transposed.
  template <class Element>
  bool take(const RowKernels<Element>& kernels, std::int64_t matrix, std::int64_t row, std::int64_t rows,
            std::int64_t column, std::int64_t columns, float* to) const {
    const auto row_step = kept_.stride(1), column_step = kept_.stride(2);
    const auto* from = static_cast<const Element*>(kept_.const_data_ptr()) + matrix * kept_.stride(0) + row * row_step +
                       column * column_step;
    const bool by_columns = !in_rows(kept_);
    const auto runs = by_columns ? columns : rows, length = by_columns ? rows : columns;
    const auto step = by_columns ? column_step : row_step;
    if (step == length) {
      kernels.to_floats(runs * length, from, to);
    } else {
      for (std::int64_t i = 0; i < runs; ++i) kernels.to_floats(length, from + i * step, to + i * length);
    }
    return by_columns;
  }

 private:
  static bool in_rows(const at::Tensor& x) { return x.stride(2) == 1 || x.size(2) == 1; }
  static bool has_runs(const at::Tensor& x) { return in_rows(x) || x.stride(1) == 1 || x.size(1) == 1; }
  at::Tensor kept_;
};

struct Cut {
  std::int64_t whole, part;
  std::int64_t parts() const { return (whole + part - 1) / part; }
  std::int64_t begin(std::int64_t i) const { return i * part; }
  std::int64_t size(std::int64_t i) const { return std::min(part, whole - begin(i)); }
};

// Into parts of about the same size: at most `most`, in whole vectors.
Cut cut(std::int64_t whole, std::int64_t most) {
  const auto parts = (whole + most - 1) / most, size = (whole + parts - 1) / parts;
  return {whole, std::min(whole, (size + 15) / 16 * 16)};
}

// alpha left right + beta added.
struct Product {
  Stack left, right;
  std::optional<Stack> added;
  float alpha, beta;
  std::int64_t count;
  Cut rows, columns, inner;

  template <class Element>
  void compute(const RowKernels<Element>& kernels, Element* out) const {
    const auto room = rows.part * inner.part;
    const auto floats = room + inner.part * columns.part + rows.part * columns.part;
    const auto tiles = rows.parts() * columns.parts();
    in_tasks(count * tiles, floats * static_cast<std::int64_t>(sizeof(float)),
             [&](std::int64_t task, std::uintptr_t memory) {
               const OneThreadOfMkl one;
               const at::AutoDispatchBelowADInplaceOrView below_autograd;  // the same as in the calling thread
               auto* const a = reinterpret_cast<float*>(memory);
               compute_tile(kernels, task / tiles, task % tiles, a, out);
             });
  }

 private:
  template <class Element>
  void compute_tile(const RowKernels<Element>& kernels, std::int64_t matrix, std::int64_t tile, float* a,
                    Element* out) const {
    const auto i = tile / columns.parts(), j = tile % columns.parts();
    const auto row = rows.begin(i), m = rows.size(i), column = columns.begin(j), n = columns.size(j);
    auto* const b = a + rows.part * inner.part;
    auto* const c = b + inner.part * columns.part;
    if (added) {
      added->take(kernels, matrix, row, m, column, n, c);
      for (std::int64_t at = 0; beta != 1 && at < m * n; ++at) c[at] *= beta;
    }
    for (std::int64_t part = 0; part < inner.parts(); ++part) {
      const auto begin = inner.begin(part), k = inner.size(part);
      const bool left_turned = left.take(kernels, matrix, row, m, begin, k, a);
      const bool right_turned = right.take(kernels, matrix, begin, k, column, n, b);
      const auto matrix_of = [](float* at, std::int64_t height, std::int64_t width, bool turned) {
        return turned ? at::from_blob(at, {height, width}, {1, height}) : at::from_blob(at, {height, width});
      };
      auto sum = matrix_of(c, m, n, false);
      at::cpu::addmm_out(sum, sum, matrix_of(a, m, k, left_turned), matrix_of(b, k, n, right_turned),
                         added || part > 0 ? 1 : 0, alpha);
    }
    auto* const to = out + (matrix * rows.whole + row) * columns.whole + column;
    for (std::int64_t at = 0; at < m; ++at) kernels.from_floats(n, c + at * n, to + at * columns.whole);
  }
};

// left [count, m, k] times right [count, k, n], as a tensor [count, m, n].
at::Tensor multiplied(const at::Tensor& left, const at::Tensor& right, const at::Tensor& added = {}, float alpha = 1,
                      float beta = 0) {
  const auto count = left.size(0), m = left.size(1), k = left.size(2), n = right.size(2);
  std::optional<Stack> terms;
  if (added.defined() && beta != 0) {
    const auto all = added.expand({count, m, n});
    terms.emplace(all.stride(2) == 1 ? all : all.contiguous());
  }
  constexpr std::int64_t most = 512, few = 8;
  Cut rows = cut(m, most), columns = cut(n, most);
  if (count * rows.parts() * columns.parts() < few) rows = cut(m, most / 2), columns = cut(n, most / 2);
  const auto out = at::empty({count, m, n}, left.options());
  const Product product{Stack(left), Stack(right), std::move(terms), alpha, beta, count, rows, columns, cut(k, most)};
  with_row_kernels(left.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    product.compute(kernels, out.mutable_data_ptr<Element>());
  });
  return out;
}

// True for two factors of these dimensions that fit. LibTorch refuses others.
bool takes(const at::Tensor& left, const at::Tensor& right, std::int64_t left_dim, std::int64_t right_dim) {
  if (!multiplies_in_float32(left.scalar_type()) || left.dim() != left_dim || right.dim() != right_dim) return false;
  const auto inner = right_dim == 1 ? 0 : right_dim - 2;
  return right.scalar_type() == left.scalar_type() && has_plain_numbers(left) && has_plain_numbers(right) &&
         left.numel() > 0 && right.numel() > 0 && left.size(-1) == right.size(inner) &&
         (right_dim != 3 || left.size(0) == right.size(0));
}
// The same for a sum: `added` expands to the product, whose dimensions `last` and before are those of `left`.
bool takes(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, std::int64_t dim,
           std::int64_t right_dim) {
  if (!takes(left, right, dim, right_dim) || added.scalar_type() != left.scalar_type() || !has_plain_numbers(added)) {
    return false;
  }
  auto sizes = left.sizes().vec();
  sizes.pop_back();
  if (right_dim > 1) sizes.push_back(right.size(-1));
  return at::is_expandable_to(added.sizes(), sizes);
}

}  // namespace

bool lacks_fast_products(at::ScalarType dtype) {
  if ((dtype != at::kHalf && dtype != at::kBFloat16) || !fused_kernels() || keeps_plain_products()) return false;
  static const bool has_half = libtorch_multiplies("mkldnn::_is_mkldnn_fp16_supported");
  static const bool has_bfloat16 = gains_by_bfloat16() && libtorch_multiplies("mkldnn::_is_mkldnn_bf16_supported");
  return dtype == at::kHalf ? !has_half : !has_bfloat16;
}

bool multiplies_in_float32(at::ScalarType dtype) {
  return lacks_fast_products(dtype) && may_compute_rows();
}

at::Tensor mm(const at::Tensor& left, const at::Tensor& right) {
  if (!takes(left, right, 2, 2)) return at::cpu::mm(left, right);
  return multiplied(left.unsqueeze(0), right.unsqueeze(0)).squeeze(0);
}
at::Tensor bmm(const at::Tensor& left, const at::Tensor& right) {
  return takes(left, right, 3, 3) ? multiplied(left, right) : at::cpu::bmm(left, right);
}
at::Tensor mv(const at::Tensor& left, const at::Tensor& right) {
  if (!takes(left, right, 2, 1)) return at::compositeexplicitautograd::mv(left, right);
  return multiplied(left.unsqueeze(0), right.unsqueeze(0).unsqueeze(2)).view({-1});
}
at::Tensor addmm(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!takes(added, left, right, 2, 2)) return at::cpu::addmm(added, left, right, beta, alpha);
  return multiplied(left.unsqueeze(0), right.unsqueeze(0), added, alpha.to<float>(), beta.to<float>()).squeeze(0);
}
at::Tensor baddbmm(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  if (!takes(added, left, right, 3, 3)) return at::cpu::baddbmm(added, left, right, beta, alpha);
  return multiplied(left, right, added, alpha.to<float>(), beta.to<float>());
}
at::Tensor addmv(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!takes(added, left, right, 2, 1)) return at::cpu::addmv(added, left, right, beta, alpha);
  return multiplied(left.unsqueeze(0), right.unsqueeze(0).unsqueeze(2), added.unsqueeze(-1), alpha.to<float>(),
                    beta.to<float>())
      .view({-1});
}

}  // namespace vernier
