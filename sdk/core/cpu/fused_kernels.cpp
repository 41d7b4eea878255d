#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/silu_backward_cpu_dispatch.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <vernier/fused_kernels.h>

#include <atomic>

#include "base/parallel.h"
#include "blocked_attention.h"
#include "cpu/kernels/activation_kernel.h"
#include "gpu/gpu_choice.h"
#include "operators.h"
#include "rows.h"

namespace vernier {

namespace {

std::atomic<bool> in_use = false;

// Elements without gaps, which the kernels take in the order of the memory.
bool takes(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  bool has_kernels = false;
  if (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) {
    with_element(dtype, [&]<class E>(E) { has_kernels = best_kernels<ActivationKernels<E>>() != nullptr; });
  }
  return in_use && x.is_non_overlapping_and_dense() && has_kernels;
}
bool takes(const at::Tensor& dy, const at::Tensor& x) {
  return takes(x) && dy.scalar_type() == x.scalar_type() && dy.sizes() == x.sizes() && dy.strides() == x.strides();
}

// Calls body(start, count) for runs of the elements, on several threads where that pays.
template <class Body>
void in_runs(std::int64_t elements, const Body& body) {
  constexpr std::int64_t run = 8192;  // a second thread saves time from about so many on
  for_each_chunk(static_cast<std::size_t>((elements + run - 1) / run), /*chunks_a_thread=*/2, [&](std::size_t i) {
    const auto start = static_cast<std::int64_t>(i) * run;
    body(start, std::min(run, elements - start));
  });
}

// `of` gives the kernel of a table.
template <class Of>
at::Tensor forward(const Of& of, const at::Tensor& x) {
  auto y = at::empty_like(x);
  with_element(x.scalar_type(), [&]<class Element>(Element) {
    const auto* from = x.const_data_ptr<Element>();
    auto* to = y.mutable_data_ptr<Element>();
    const auto kernel = of(*best_kernels<ActivationKernels<Element>>());
    in_runs(x.numel(), [&](auto start, auto count) { kernel(from + start, to + start, count); });
  });
  return y;
}
template <class Of>
at::Tensor backward(const Of& of, const at::Tensor& dy, const at::Tensor& x) {
  auto dx = at::empty_like(x);
  with_element(x.scalar_type(), [&]<class Element>(Element) {
    const auto *above = dy.const_data_ptr<Element>(), *from = x.const_data_ptr<Element>();
    auto* to = dx.mutable_data_ptr<Element>();
    const auto kernel = of(*best_kernels<ActivationKernels<Element>>());
    in_runs(x.numel(), [&](auto start, auto count) { kernel(above + start, from + start, to + start, count); });
  });
  return dx;
}

constexpr auto gelu_tanh = [](const auto& kernels) { return kernels.gelu_tanh; };
constexpr auto gelu_tanh_backward = [](const auto& kernels) { return kernels.gelu_tanh_backward; };
constexpr auto silu_forward = [](const auto& kernels) { return kernels.silu; };
constexpr auto silu_derivative = [](const auto& kernels) { return kernels.silu_backward; };

at::Tensor gelu(const at::Tensor& x, c10::string_view approximate) {
  return approximate == "tanh" && takes(x) ? forward(gelu_tanh, x) : at::cpu::gelu(x, approximate);
}
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, c10::string_view approximate) {
  return approximate == "tanh" && takes(dy, x) ? backward(gelu_tanh_backward, dy, x)
                                               : at::cpu::gelu_backward(dy, x, approximate);
}
at::Tensor silu(const at::Tensor& x) {
  return takes(x) ? forward(silu_forward, x) : at::cpu::silu(x);
}
at::Tensor silu_backward(const at::Tensor& dy, const at::Tensor& x) {
  return takes(dy, x) ? backward(silu_derivative, dy, x) : at::cpu::silu_backward(dy, x);
}

// LibTorch warns of each kernel that takes another's place.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Once in a process, and for its rest: `in_use` says whether they do the work.
void take_the_place_of_libtorchs() {
  NoWarnings none;
  const c10::WarningUtils::WarningHandlerGuard guard(&none);
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("gelu", &gelu);
  library->impl("gelu_backward", &gelu_backward);
  library->impl("silu", &silu);
  library->impl("silu_backward", &silu_backward);
  register_small_operators(*library);
  register_blocked_attention(*library);
  register_bernoulli(*library);
  register_max_pool(*library);
}

}  // namespace

void use_fused_kernels(bool on) {
  if (on) {
    static const bool once = (take_the_place_of_libtorchs(), true);
    (void)once;
  }
  in_use = on;
  use_gpu_library(on);
}

bool fused_kernels() {
  return in_use;
}

}  // namespace vernier
