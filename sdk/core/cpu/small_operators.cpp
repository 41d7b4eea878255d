#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <vernier/fused_kernels.h>

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

}  // namespace

void register_small_operators(torch::Library& library) {
  put<&mm, small_product>(library, "mm");
  put<&bmm, small_product>(library, "bmm");
  put<&addmm, small_sum>(library, "addmm");
  put<&baddbmm, small_sum>(library, "baddbmm");
  library.impl("mv", &mv);
  library.impl("addmv", &addmv);
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
