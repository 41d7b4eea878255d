// The element-wise kernels of vernier/fused_kernels.h against LibTorch's, forward and backward, on one thread.
#include <ATen/Parallel.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/types.h>
#include <vernier/fused_kernels.h>

#include "compare.h"

namespace {

void compare_kernels(const std::string& title, const std::function<void()>& body) {
  const auto with = [&](bool fused) {
    return [fused, &body] {
      vernier::use_fused_kernels(fused);
      body();
    };
  };
  compare(title.c_str(), {{"LibTorch", with(false)}, {"Vernier", with(true)}}, /*rounds=*/30, /*steps_a_round=*/4);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const std::string elements = std::string(" of 1,048,576 elements, ") + c10::toString(dtype);
    const auto x = at::randn({1 << 20}).to(dtype), dy = at::randn({1 << 20}).to(dtype);
    compare_kernels("gelu (tanh)" + elements, [&] { at::gelu(x, "tanh"); });
    compare_kernels("its backward" + elements, [&] { at::gelu_backward(dy, x, "tanh"); });
    compare_kernels("silu" + elements, [&] { at::silu(x); });
    compare_kernels("its backward" + elements, [&] { at::silu_backward(dy, x); });
  }
}
