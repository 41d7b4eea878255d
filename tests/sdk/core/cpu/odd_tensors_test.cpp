// Tensors whose numbers are not in memory as they are, for all kernels of this library: with the negative bit, without
// memory (ZeroTensor), and gradients that are undefined. LibTorch's own kernels are the oracle.
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <vernier/grad_norm.h>
#include <vernier/optim.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fused_choice.h"

namespace odd_tensors_test {

namespace {

using fused_test::Fused;
using Tensors = std::vector<torch::Tensor>;

// Returns the gradient that it is asked to, of its input.
struct Behind final : torch::autograd::Function<Behind> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const std::string& how) {
    context->saved_data["how"] = how;
    context->set_materialize_grads(false);
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& above) {
    const auto how = context->saved_data["how"].toStringRef();
    if (how == "undefined") return {torch::Tensor(), torch::Tensor()};
    if (how == "zero") return {at::_efficientzerotensor(above[0].sizes(), above[0].options()), torch::Tensor()};
    return {how == "negative" ? at::_neg_view(-above[0]) : above[0], torch::Tensor()};
  }
};

struct Function {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& weight)> call;
};

std::vector<Function> functions() {
  const auto classes = torch::arange(64) % 48;
  return {{"gelu", [](const auto& x, const auto&) { return at::gelu(x, "tanh"); }},
          {"silu", [](const auto& x, const auto&) { return at::silu(x); }},
          {"layer norm", [](const auto& x, const auto& w) { return at::layer_norm(x, {48}, w, w); }},
          {"rms norm", [](const auto& x, const auto& w) { return at::rms_norm(x, {48}, w); }},
          {"softmax", [](const auto& x, const auto&) { return at::softmax(x, -1); }},
          {"log softmax", [](const auto& x, const auto&) { return at::log_softmax(x, -1); }},
          {"cross entropy", [classes](const auto& x, const auto&) { return at::cross_entropy_loss(x, classes); }},
          {"attention",
           [](const auto& x, const auto&) {
             const auto heads = x.unsqueeze(0).unsqueeze(0);
             return at::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, true);
           }},
          {"dropout",
           [](const auto& x, const auto&) {
             torch::manual_seed(3);
             return at::dropout(x, 0.5, true);
           }},
          {"product", [](const auto& x, const auto& w) { return at::matmul(x, w); }}};
}

torch::Tensor odd(const torch::Tensor& x, const std::string& how) {
  if (how == "negative") return at::_neg_view(-x);
  if (how == "zero") return at::_efficientzerotensor(x.sizes(), x.options());
  return x.clone();
}

// The output and the gradients of x and weight; what is thrown is a difference too.
Tensors run(const Function& function, torch::ScalarType dtype, const std::string& x_is, const std::string& weight_is,
            const std::string& above_is) {
  torch::manual_seed(1);
  const auto x = odd(torch::randn({64, 48}, dtype), x_is).requires_grad_();
  const auto weight = odd(torch::randn({48}, dtype), weight_is).requires_grad_();
  const auto y = function.call(x, weight);
  const auto end = Behind::apply(y, above_is);
  (end * torch::randn(end.sizes(), dtype)).sum().backward();
  return {y.detach(), x.grad(), weight.grad()};
}

}  // namespace

TEST_CASE("odd tensors: fused kernels take them as LibTorch's do") {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"plain", "plain", "plain"},    {"plain", "plain", "undefined"}, {"plain", "plain", "negative"},
      {"plain", "plain", "zero"},     {"negative", "plain", "plain"},  {"zero", "plain", "plain"},
      {"plain", "negative", "plain"}, {"plain", "zero", "plain"},      {"negative", "negative", "negative"},
      {"zero", "plain", "undefined"}};
  for (const auto& function : functions()) {
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
      for (const auto& [x_is, weight_is, above_is] : cases) {
        // LibTorch's own attention of a tensor without memory gives what it finds.
        if (function.name == "attention" && std::string(x_is) == "zero") continue;
        CAPTURE(function.name);
        CAPTURE(dtype);
        CAPTURE(x_is);
        CAPTURE(weight_is);
        CAPTURE(above_is);
        Tensors results[2];
        bool has_thrown[2] = {};
        for (const bool fused : {false, true}) {
          const Fused choice(fused);
          try {
            results[fused] = run(function, dtype, x_is, weight_is, above_is);
          } catch (const std::exception&) {
            has_thrown[fused] = true;
          }
        }
        CHECK(has_thrown[1] <= has_thrown[0]);
        if (has_thrown[0] || has_thrown[1]) continue;
        for (std::size_t i = 0; i < 3; ++i) {
          CAPTURE(i);
          CHECK(results[0][i].defined() == results[1][i].defined());
          if (!results[0][i].defined() || !results[1][i].defined()) continue;
          // In 16 bits LibTorch rounds each of the numbers that a gradient adds up.
          const bool is_wide = dtype == torch::kFloat32;
          CHECK(torch::allclose(results[0][i].to(torch::kFloat64), results[1][i].to(torch::kFloat64),
                                is_wide ? 1e-5 : 3e-2, is_wide ? 1e-5 : 0.3));
        }
      }
    }
  }
}

// torch.export notes views that fit the strides of LibTorch's results, and a graph with other strides cannot make them.
TEST_CASE("odd tensors: results and gradients have the strides that LibTorch's kernels give them") {
  using Layout = std::function<torch::Tensor(torch::ScalarType dtype)>;
  const auto permuted = [](std::vector<std::int64_t> sizes, std::vector<std::int64_t> order) -> Layout {
    return [=](torch::ScalarType dtype) { return torch::randn(sizes).to(dtype).permute(order); };
  };
  const std::pair<const char*, Layout> layouts[] = {
      {"in rows", permuted({2, 4, 64, 48}, {0, 1, 2, 3})},
      {"heads behind the sequence", permuted({2, 64, 4, 48}, {0, 2, 1, 3})},
      {"sequence first", permuted({64, 2, 4, 48}, {1, 2, 0, 3})},
      {"heads first", permuted({4, 2, 64, 48}, {1, 0, 2, 3})},
      {"channels last", permuted({2, 64, 48, 4}, {0, 3, 1, 2})},
      {"columns first", permuted({2, 4, 48, 64}, {0, 1, 3, 2})},
      {"a part of another",
       [](torch::ScalarType dtype) { return torch::randn({2, 4, 64, 96}).to(dtype).narrow(3, 48, 48); }},
      {"expanded", [](torch::ScalarType dtype) {
         return torch::randn({1, 4, 64, 48}).to(dtype).expand({2, 4, 64, 48});
       }}};
  const Function functions[] = {
      {"gelu", [](const auto& x, const auto&) { return at::gelu(x, "tanh"); }},
      {"silu", [](const auto& x, const auto&) { return at::silu(x); }},
      {"layer norm", [](const auto& x, const auto& w) { return at::layer_norm(x, {48}, w, w); }},
      {"rms norm", [](const auto& x, const auto& w) { return at::rms_norm(x, {48}, w); }},
      {"softmax", [](const auto& x, const auto&) { return at::softmax(x, -1); }},
      {"log softmax", [](const auto& x, const auto&) { return at::log_softmax(x, -1); }},
      {"dropout", [](const auto& x, const auto&) { return at::dropout(x, 0.5, true); }},
      {"attention", [](const auto& x, const auto&) { return at::scaled_dot_product_attention(x, x, x); }},
      {"attention of few",
       [](const auto& x, const auto&) {
         const auto few = x.narrow(2, 0, 3);
         return at::scaled_dot_product_attention(few, few, few);
       }},
      {"linear",
       [](const auto& x, const auto& w) {
         return at::linear(x, w.expand({40, 48}));
       }},
      {"product",
       [](const auto& x, const auto& w) {
         return at::matmul(x, w.expand({40, 48}).t());
       }},
      {"product with a vector", [](const auto& x, const auto& w) { return at::matmul(x, w); }},
      {"pooling",
       [](const auto& x, const auto&) {
         return at::max_pool2d(x, {2, 2});
       }},
      {"convolution",
       [](const auto& x, const auto& w) {
         return at::conv2d(x, w.view({4, 4, 3, 1}));
       }},
  };
  for (const auto& function : functions) {
    for (const auto& [name, layout] : layouts) {
      for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
        CAPTURE(function.name);
        CAPTURE(name);
        CAPTURE(dtype);
        std::vector<std::vector<std::int64_t>> strides[2];
        for (const bool fused : {false, true}) {
          const Fused choice(fused);
          torch::manual_seed(1);
          const auto x = layout(dtype).requires_grad_(), weight = torch::randn({48}).to(dtype).requires_grad_();
          const auto y = function.call(x, weight);
          const auto gradient = torch::autograd::grad({y}, {x}, {torch::randn(y.sizes()).to(dtype)})[0];
          for (const auto& tensor : {y, gradient}) strides[fused].push_back(tensor.strides().vec());
        }
        CHECK(strides[1] == strides[0]);
      }
    }
  }
}

TEST_CASE("odd tensors: optimizers and norms of gradients") {
  using Make = std::function<std::unique_ptr<vernier::FusedOptimizer>(Tensors)>;
  const auto make = []<class Optimizer>(Optimizer*) -> Make {
    return [](Tensors parameters) { return std::make_unique<Optimizer>(std::move(parameters)); };
  };
  const std::pair<const char*, Make> optimizers[] = {{"AdamW", make(static_cast<vernier::AdamW*>(nullptr))},
                                                     {"Adam", make(static_cast<vernier::Adam*>(nullptr))},
                                                     {"SGD", make(static_cast<vernier::SGD*>(nullptr))},
                                                     {"RMSprop", make(static_cast<vernier::RMSprop*>(nullptr))},
                                                     {"Adagrad", make(static_cast<vernier::Adagrad*>(nullptr))},
                                                     {"Lion", make(static_cast<vernier::Lion*>(nullptr))},
                                                     {"Lamb", make(static_cast<vernier::Lamb*>(nullptr))},
                                                     {"Adafactor", make(static_cast<vernier::Adafactor*>(nullptr))},
                                                     {"Muon", make(static_cast<vernier::Muon*>(nullptr))},
                                                     {"Adadelta", make(static_cast<vernier::Adadelta*>(nullptr))},
                                                     {"NAdam", make(static_cast<vernier::NAdam*>(nullptr))},
                                                     {"RAdam", make(static_cast<vernier::RAdam*>(nullptr))},
                                                     {"Adamax", make(static_cast<vernier::Adamax*>(nullptr))},
                                                     {"Rprop", make(static_cast<vernier::Rprop*>(nullptr))},
                                                     {"ASGD", make(static_cast<vernier::ASGD*>(nullptr))}};
  torch::manual_seed(2);
  const auto start = torch::randn({16, 8}), gradient = torch::randn({16, 8});
  for (const auto& [name, optimizer_of] : optimizers) {
    for (const char* how : {"negative", "zero"}) {
      CAPTURE(name);
      CAPTURE(how);
      Tensors weights;
      for (const bool is_odd : {false, true}) {
        const auto weight = start.clone().requires_grad_();
        const auto optimizer = optimizer_of({weight});
        for (int step = 0; step < 2; ++step) {
          const auto given = odd(gradient, how);
          weight.mutable_grad() = is_odd ? given : torch::zeros_like(gradient) + given;
          optimizer->step();
        }
        weights.push_back(weight.detach());
      }
      CHECK(torch::equal(weights[0], weights[1]));
    }
  }
  for (const char* how : {"negative", "zero"}) {
    CAPTURE(how);
    const auto given = odd(gradient, how);
    CHECK(vernier::inspect_gradients({given, gradient}).norm.isfinite().item<bool>());
    const auto norm = vernier::grad_norm({given, gradient});
    CHECK(torch::allclose(norm, vernier::grad_norm({torch::zeros_like(gradient) + given, gradient})));
  }
}

}  // namespace odd_tensors_test
