#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/index_select_cpu_dispatch.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <vernier/fused_kernels.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpu/one_thread.h"
#include "half_products.h"
#include "operators.h"
#include "row_operators.h"

namespace vernier {

namespace {

// LibTorch's own grain for work of an element at a time (at::internal::GRAIN_SIZE).
constexpr auto few_elements = [](const at::Tensor& x, const auto&...) { return x.numel() < 32768; };
// Multiplications that one thread does in about 10 microseconds.
constexpr std::int64_t few_products = 1 << 19;
constexpr auto small_product = [](const at::Tensor& a, const at::Tensor& b) {
  return b.dim() > 0 && a.numel() * b.size(-1) < few_products;  // wrong shapes are refused by the kernel
};
constexpr auto small_sum = [](const at::Tensor&, const at::Tensor& a, const at::Tensor& b, const auto&...) {
  return small_product(a, b);
};

// kernel, on one thread where is_small says so of its arguments.
template <auto kernel, auto is_small>
struct OnOneThread;
template <class Result, class... Arguments, Result (*kernel)(Arguments...), auto is_small>
struct OnOneThread<kernel, is_small> {
  static Result call(Arguments... arguments) {
    std::optional<OneThreadOfMkl> one;
    if (fused_kernels() && at::get_num_threads() > 1 && is_small(arguments...)) one.emplace();
    return kernel(std::forward<Arguments>(arguments)...);
  }
};

template <auto kernel, auto is_small>
void put(torch::Library& library, const char* name) {
  library.impl(name, &OnOneThread<kernel, is_small>::call);
}

// Rows by number, as a batch takes its samples. LibTorch's kernel spends several times what it takes to copy a few.
at::Tensor index_select(const at::Tensor& x, std::int64_t dim, const at::Tensor& index) {
  const auto rows = x.dim() > 0 ? x.size(0) : 0, count = index.numel();
  const auto is_row = [&](std::int64_t number) { return 0 <= number && number < rows; };
  bool is_taken = fused_kernels() && dim == 0 && rows > 0 && x.numel() > 0 && x.is_contiguous() &&
                  count * (x.numel() / rows) < 32768;
  is_taken =
      is_taken && index.is_cpu() && index.dim() == 1 && index.scalar_type() == at::kLong && index.is_contiguous();
  const auto* const numbers = is_taken ? index.const_data_ptr<std::int64_t>() : nullptr;
  if (!is_taken || !std::all_of(numbers, numbers + count, is_row)) return at::cpu::index_select(x, dim, index);
  auto sizes = x.sizes().vec();
  sizes[0] = count;
  at::Tensor y = at::detail::empty_cpu(sizes, x.options());
  const auto bytes = x.nbytes() / static_cast<std::size_t>(rows);
  const auto* const from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  for (std::int64_t i = 0; i < count; ++i, to += bytes) std::memcpy(to, from + numbers[i] * bytes, bytes);
  return y;
}

}  // namespace

void register_small_operators(torch::Library& library) {
  put<&mm, small_product>(library, "mm");
  put<&bmm, small_product>(library, "bmm");
  put<&addmm, small_sum>(library, "addmm");
  put<&baddbmm, small_sum>(library, "baddbmm");
  library.impl("mv", &mv);
  library.impl("addmv", &addmv);
  library.impl("index_select", &index_select);
  register_half_layers(library);
  register_rms_norm(library);
  register_cross_entropy(library);
  put<&softmax, few_elements>(library, "_softmax");
  put<&at::cpu::_softmax_backward_data, few_elements>(library, "_softmax_backward_data");
  put<&log_softmax, few_elements>(library, "_log_softmax");
  put<&log_softmax_backward, few_elements>(library, "_log_softmax_backward_data");
  put<&at::cpu::nll_loss_forward, few_elements>(library, "nll_loss_forward");
  put<&at::cpu::nll_loss_backward, [](const at::Tensor&, const at::Tensor& x, const auto&...) {
    return few_elements(x);
  }>(library, "nll_loss_backward");
  put<&layer_norm, few_elements>(library, "native_layer_norm");
  put<&layer_norm_backward, few_elements>(library, "native_layer_norm_backward");
}

}  // namespace vernier
