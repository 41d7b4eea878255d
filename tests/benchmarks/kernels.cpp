// The kernels of vernier/fused_kernels.h against LibTorch's, forward and backward, on one thread.
#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <vernier/fused_kernels.h>

#include <string>
#include <vector>

#include "compare.h"

namespace {

void compare_kernels(const std::string& title, const std::function<void()>& body, int rounds = 30) {
  const auto with = [&](bool fused) {
    return [fused, &body] {
      vernier::use_fused_kernels(fused);
      body();
    };
  };
  compare(title.c_str(), {{"LibTorch", with(false)}, {"Vernier", with(true)}}, rounds, /*steps_a_round=*/4);
}

void compare_rows(std::int64_t rows, std::int64_t columns) {
  const std::string of = c10::str(" of ", rows, " rows of ", columns, ", Float");
  const auto x = at::randn({rows, columns}), dy = at::randn({rows, columns}), weight = at::randn({columns});
  compare_kernels("layer norm" + of, [&] { at::layer_norm(x, {columns}, weight, weight); });
  compare_kernels("softmax" + of, [&] { at::_softmax(x, -1, false); });
  compare_kernels("log softmax" + of, [&] { at::_log_softmax(x, -1, false); });
  const auto y = at::_log_softmax(x, -1, false);
  compare_kernels("its backward" + of, [&] { at::_log_softmax_backward_data(dy, y, -1, at::kFloat); });
}

void compare_attention(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t width,
                       torch::ScalarType dtype) {
  const auto tensor = [&] { return at::randn({batch, length, heads, width}).to(dtype).transpose(1, 2); };
  const std::vector<torch::Tensor> leaves = {tensor().requires_grad_(), tensor().requires_grad_(),
                                             tensor().requires_grad_()};
  const auto dy = tensor();
  const auto forward = [&] {
    return at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {}, 0.0, /*is_causal=*/true);
  };
  const auto of = c10::str(", batch ", batch, ", ", heads, " heads of ", width, ", length ", length, ", ", dtype);
  compare_kernels(
      "causal attention" + of, [&] { forward(); }, /*rounds=*/7);
  const auto y = forward();
  compare_kernels(
      "its backward" + of, [&] { torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true); }, 7);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    const std::string elements = std::string(" of 1,048,576 elements, ") + c10::toString(dtype);
    const auto x = at::randn({1 << 20}).to(dtype), dy = at::randn({1 << 20}).to(dtype);
    compare_kernels("gelu (tanh)" + elements, [&] { at::gelu(x, "tanh"); });
    compare_kernels("its backward" + elements, [&] { at::gelu_backward(dy, x, "tanh"); });
    compare_kernels("silu" + elements, [&] { at::silu(x); });
    compare_kernels("its backward" + elements, [&] { at::silu_backward(dy, x); });
  }
  compare_rows(2048, 128);
  compare_rows(2048, 256);
  compare_rows(128, 10);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    compare_attention(16, 4, 128, 32, dtype);
    compare_attention(1, 12, 1024, 64, dtype);
  }
}
