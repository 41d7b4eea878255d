// The kernels of vernier/fused_kernels.h against LibTorch's, forward and backward, on one thread. Then the instruction
// sets of base/kernels.inc against each other.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <vernier/fused_kernels.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/kernels.h"
#include "compare.h"
#include "cpu/kernels/activation_kernel.h"
#include "cpu/kernels/row_kernel.h"

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

void compare_rows(std::int64_t rows, std::int64_t columns, torch::ScalarType dtype) {
  const std::string of = c10::str(" of ", rows, " rows of ", columns, ", ", dtype);
  const auto randn = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const auto x = randn({rows, columns}).requires_grad_(), weight = randn({columns}).requires_grad_(),
             bias = randn({columns}).requires_grad_();
  const auto dy = randn({rows, columns});
  const auto both = [&](const std::string& name, const std::vector<torch::Tensor>& leaves,
                        const std::function<torch::Tensor()>& forward) {
    compare_kernels(name + of, [&] {
      const at::NoGradGuard no_gradients;
      forward();
    });
    vernier::use_fused_kernels(true);
    const auto mine = forward();
    vernier::use_fused_kernels(false);
    const auto theirs = forward();
    compare_kernels("its backward" + of, [&] {
      torch::autograd::grad({vernier::fused_kernels() ? mine : theirs}, leaves, {dy}, /*retain_graph=*/true);
    });
  };
  both("layer norm", {x, weight, bias}, [&] { return at::layer_norm(x, {columns}, weight, bias); });
  both("rms norm", {x, weight}, [&] { return at::rms_norm(x, {columns}, weight); });
  both("softmax", {x}, [&] { return at::softmax(x, -1); });
  both("log softmax", {x}, [&] { return at::log_softmax(x, -1); });
  const auto target = at::randint(columns, {rows}, torch::kInt64);
  compare_kernels("cross entropy and its backward" + of,
                  [&] { torch::autograd::grad({at::cross_entropy_loss(x, target)}, {x}); });
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

void compare_activations(torch::ScalarType dtype) {
  const std::string elements = c10::str(" of 1,048,576 elements, ", dtype);
  const auto x = at::randn({1 << 20}).to(dtype), dy = at::randn({1 << 20}).to(dtype);
  compare_kernels("gelu (tanh)" + elements, [&] { at::gelu(x, "tanh"); });
  compare_kernels("its backward" + elements, [&] { at::gelu_backward(dy, x, "tanh"); });
  compare_kernels("silu" + elements, [&] { at::silu(x); });
  compare_kernels("its backward" + elements, [&] { at::silu_backward(dy, x); });
  compare_kernels("dropout" + elements, [&] { at::dropout(x, 0.1, /*train=*/true); });
}

void compare_pool(std::int64_t channels, std::int64_t side, torch::ScalarType dtype) {
  const auto x = at::randn({32, channels, side, side}).to(dtype);
  compare_kernels(c10::str("max_pool2d of 2x2 windows, 32 images of ", channels, " x ", side, " x ", side, ", ", dtype),
                  [&] {
                    at::max_pool2d_with_indices(x, {2, 2});
                  });
  const auto places = std::get<1>(at::max_pool2d_with_indices(x, {2, 2}));
  const auto dy = at::randn(places.sizes()).to(dtype);
  compare_kernels("its backward", [&] {
    at::max_pool2d_with_indices_backward(dy, x, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, places);
  });
}

using vernier::Instructions;

template <class E>
void run(const vernier::RowKernels<E>& kernels, const at::Tensor& x, const at::Tensor& y) {
  kernels.softmax({1024, 1024}, x.const_data_ptr<E>(), y.mutable_data_ptr<E>());
}
template <class E>
void run(const vernier::ActivationKernels<E>& kernels, const at::Tensor& x, const at::Tensor& y) {
  kernels.gelu_tanh(x.const_data_ptr<E>(), y.mutable_data_ptr<E>(), x.numel());
}

template <class Table, class E>
void compare_sets(const char* title) {
  const auto x = at::randn({1024, 1024}).to(c10::CppTypeToScalarType<E>::value), y = at::empty_like(x);
  std::vector<Rival> rivals;
  vernier::each_table<Table>([&](Instructions set, const Table& kernels) {
    rivals.push_back({set == Instructions::avx2 ? "AVX2" : "AVX-512", [&] { run(kernels, x, y); }});
  });
  if (rivals.size() > 1) compare(title, std::move(rivals), /*rounds=*/30, /*steps_a_round=*/4);
}

}  // namespace

// With one of the words activations, rows, attention, pool and sets: those alone.
int main(int count, char** arguments) {
  const std::string wanted = count > 1 ? arguments[1] : "";
  const auto is_wanted = [&](const char* name) { return wanted.empty() || wanted == name; };
  at::set_num_threads(1);
  if (is_wanted("sets")) {
    compare_sets<vernier::RowKernels<float>, float>("softmax of 1,024 rows of 1,024");
    compare_sets<vernier::RowKernels<c10::BFloat16>, c10::BFloat16>("the same, BFloat16");
    compare_sets<vernier::ActivationKernels<float>, float>("gelu (tanh) of 1,048,576 elements");
    compare_sets<vernier::ActivationKernels<c10::BFloat16>, c10::BFloat16>("the same, BFloat16");
  }
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    if (is_wanted("activations")) compare_activations(dtype);
    if (is_wanted("rows")) {
      compare_rows(2048, 128, dtype);
      compare_rows(2048, 256, dtype);
      compare_rows(2048, 1024, dtype);
      compare_rows(128, 10, dtype);
      compare_rows(512, 4096, dtype);
    }
    if (is_wanted("pool")) {
      compare_pool(16, 28, dtype);
      compare_pool(32, 14, dtype);
      compare_pool(64, 56, dtype);
    }
    if (is_wanted("attention")) {
      compare_attention(16, 4, 128, 32, dtype);
      compare_attention(1, 12, 1024, 64, dtype);
    }
  }
}
