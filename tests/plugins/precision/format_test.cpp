// precision/format: each product is that of the operands rounded beforehand, in forward and backward, by a plain loop.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <torch/library.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/lab/tensor_format.h>
#include <vernier/layers.h>

#include <algorithm>
#include <functional>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace format_test {

using torch::Tensor;
using vernier::Precision;
using vernier::round_to;
using vernier::ScaleBlock;
using vernier::tensor_format;
using vernier::TensorFormat;

namespace {

struct Layers final : torch::nn::Module {
  Layers()
      : weight(register_parameter("weight", torch::randn({48, 64}).div_(8))),
        bias(register_parameter("bias", torch::randn({48}))),
        kernel(register_parameter("kernel", torch::randn({8, 4, 3, 3}).div_(6))) {}
  Tensor weight, bias, kernel;
};

std::vector<std::string>& told() {
  static std::vector<std::string> lines;
  return lines;
}

struct Policy {
  explicit Policy(const std::string& options) {
    const auto config = from_toml({"[precision]\n" + options});
    plugin = make_plugin<Precision>("precision/format", std::get<vernier::Table>(config.at("precision").data));
    torch::manual_seed(3);
    model = std::make_shared<Layers>();
    run.model = model;
    told().clear();
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { told().push_back(text); });
    plugin->prepare(run);
  }
  ~Policy() { vernier::set_log_sink(nullptr); }
  template <class Body>
  Tensor operator()(const Body& body) {
    return plugin->forward(body);
  }
  vernier::TrainerRun run;
  std::shared_ptr<Layers> model;
  std::unique_ptr<Precision> plugin;
};

// A format of the option `scaling = "auto"`.
TensorFormat scaled(const std::string& name) {
  auto format = tensor_format(name);
  if (format.block == 0 && format.element.bits <= 8) format.block = -1;
  return format;
}

// summed: the dimension of a matrix along which blocks lie, 0 or 1.
Tensor rounded(const Tensor& x, const TensorFormat& format, int summed) {
  if (format.block <= 0) return round_to(x, format);
  return round_to(x, format, summed == 1 ? ScaleBlock{1, format.block} : ScaleBlock{format.block, 1});
}

struct Products {
  Tensor y, dx, dw;
};

Products linear(Policy& policy, const Tensor& x, const Tensor& g) {
  const auto input = x.detach().clone().requires_grad_();
  policy.model->weight.mutable_grad() = Tensor();
  const auto y = policy([&] { return at::linear(input, policy.model->weight, policy.model->bias); });
  y.backward(g);
  return {y.detach(), input.grad(), policy.model->weight.grad()};
}

}  // namespace

TEST_CASE("format: a linear layer multiplies rounded operands, each rounded along the dimension that is summed") {
  struct Row {
    const char* options;
    const char *forward, *backward;
  };
  const Row rows[] = {
      {"forward = 'e4m3'\noperands = {g = 'e5m2'}", "e4m3", "e5m2"},
      {"forward = 'mxfp8'", "mxfp8", "mxfp8"},
      {"forward = 'nvfp4'", "nvfp4", "nvfp4"},
      {"forward = 'mxint8'\noperands = {g = 'bf16'}", "mxint8", "bf16"},
      {"forward = 'fp16'\noperands = {x = {scaling = 'none'}}", "fp16", "fp16"},
      {"forward = 'posit8_1'\noperands = {g = 'posit16_1'}", "posit8_1", "posit16_1"},
      {"forward = 'int8'\noperands = {g = 'e3m4'}", "int8", "e3m4"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    Policy policy(row.options);
    const auto x = torch::randn({5, 20, 64}), g = torch::randn({5, 20, 48}).mul_(1e-3);
    const auto found = linear(policy, x, g);
    const auto forward = scaled(row.forward), backward = scaled(row.backward);
    const auto a = x.view({-1, 64}), e = g.view({-1, 48}), w = policy.model->weight.detach();
    const auto y = at::matmul(rounded(a, forward, 1), rounded(w, forward, 1).t()) + policy.model->bias.detach();
    CHECK(torch::allclose(found.y.view({-1, 48}), y, 1e-5, 1e-5));
    const auto dx = at::matmul(rounded(e, backward, 1), rounded(w, forward, 0));
    CHECK(torch::allclose(found.dx.view({-1, 64}), dx, 1e-5, 1e-8));
    const auto dw = at::matmul(rounded(e, backward, 0).t(), rounded(a, forward, 0));
    CHECK(torch::allclose(found.dw, dw, 1e-5, 1e-7));
    CHECK(torch::equal(policy.model->bias.grad(), e.sum(0)));
  }
}

TEST_CASE("format: products without a weight, in batches and with broadcasting, are rounded too") {
  Policy policy("forward = 'mxfp4'");
  const auto format = tensor_format("mxfp4");
  const auto a = torch::randn({3, 2, 7, 40}).requires_grad_(), b = torch::randn({2, 40, 9}).requires_grad_();
  const auto y = policy([&] { return at::matmul(a, b); });
  CHECK(torch::allclose(y, at::matmul(round_to(a, format, {1, 32}), round_to(b, format, {32, 1})), 1e-5, 1e-5));
  const auto g = torch::randn_like(y);
  y.backward(g);
  const auto da = at::matmul(round_to(g, format, {1, 32}), round_to(b, format, {1, 32}).transpose(-2, -1));
  const auto db = at::matmul(round_to(a, format, {32, 1}).transpose(-2, -1), round_to(g, format, {32, 1})).sum(0);
  CHECK(torch::allclose(a.grad(), da, 1e-5, 1e-5));
  CHECK(torch::allclose(b.grad(), db, 1e-5, 1e-5));
}

TEST_CASE("format: a convolution has blocks along the channels, and along the samples for the weight's gradient") {
  for (const std::string name : {"mxfp8", "e4m3", "bf16"}) {
    CAPTURE(name);
    Policy policy("forward = '" + name + "'");
    const auto format = scaled(name);
    const auto x = torch::randn({6, 4, 10, 9}).requires_grad_();
    const auto& w = policy.model->kernel;
    const auto y = policy([&] { return at::conv2d(x, w, {}, {2, 1}, {1, 1}); });
    const auto by_channels = [&](const Tensor& t) {
      return rounded(t.detach().transpose(0, 1).reshape({t.size(1), -1}), format, 0)
          .view({t.size(1), t.size(0), t.size(2), t.size(3)})
          .transpose(0, 1);
    };
    const auto by_samples = [&](const Tensor& t) {
      return rounded(t.detach().reshape({t.size(0), -1}), format, 0).view(t.sizes());
    };
    auto xq = by_channels(x).requires_grad_(), wq = by_channels(w).requires_grad_();
    CHECK(torch::allclose(y, at::conv2d(xq, wq, {}, {2, 1}, {1, 1}), 1e-5, 1e-5));
    const auto g = torch::randn_like(y);
    y.backward(g);
    auto w_for_dx = by_samples(w), x_for_dw = by_samples(x).requires_grad_();
    auto again = torch::zeros_like(x).requires_grad_();
    at::conv2d(again, w_for_dx, {}, {2, 1}, {1, 1}).backward(by_channels(g));
    CHECK(torch::allclose(x.grad(), again.grad(), 1e-5, 1e-5));
    auto kernel = torch::zeros_like(w).requires_grad_();
    at::conv2d(x_for_dw, kernel, {}, {2, 1}, {1, 1}).backward(by_samples(g));
    CHECK(torch::allclose(w.grad(), kernel.grad(), 1e-4, 1e-4));
  }
  Policy policy("forward = 'e4m3'");
  const auto single = policy([&] { return at::conv2d(torch::ones({4, 5, 5}), policy.model->kernel, {}, 1, "same"); });
  CHECK(single.sizes() == torch::IntArrayRef({8, 5, 5}));
}

TEST_CASE("format: a rotation cancels in the gradient of the weights, and helps where numbers are far out") {
  torch::manual_seed(4);
  auto x = torch::randn({500, 64});
  const auto g = torch::randn({500, 48});
  x.mul_(torch::rand_like(x).lt(0.002).mul(30).add(1));  // outliers
  Policy fine("forward = 'e7m16'\nrotate = {dw = 16}"), exact("forward = 'e7m16'");
  const auto rotated = linear(fine, x, g), plain = linear(exact, x, g);
  CHECK(torch::equal(rotated.y, plain.y));
  CHECK(torch::equal(rotated.dx, plain.dx));
  CHECK_FALSE(torch::equal(rotated.dw, plain.dw));
  CHECK((rotated.dw - plain.dw).norm().item<double>() < 1e-4 * plain.dw.norm().item<double>());
  const auto error = [&](const std::string& options) {
    Policy policy(options);
    return (linear(policy, x, g).dw - plain.dw).norm().item<double>();
  };
  CHECK(error("forward = 'int4'\nrotate = {dw = 16}") < error("forward = 'int4'"));
}

TEST_CASE("format: square blocks give a weight the same codes in both directions") {
  Policy policy("forward = 'nvfp4'\noperands = {w = {square_weights = true}}");
  const auto x = torch::randn({3, 64}), g = torch::randn({3, 48});
  const auto found = linear(policy, x, g);
  const auto w = round_to(policy.model->weight.detach(), tensor_format("nvfp4"), {16, 16});
  CHECK(torch::allclose(found.dx, at::matmul(round_to(g, tensor_format("nvfp4"), {1, 16}), w), 1e-5, 1e-5));
}

TEST_CASE("format: a convolution has rotations over its samples, and square blocks over outputs and channels") {
  torch::manual_seed(5);
  const auto x = torch::randn({11, 4, 7, 7}), g = torch::randn({11, 8, 4, 4});  // 11 is not a multiple of 8
  const auto convolved = [&](const std::string& options) {
    Policy policy(options);
    const auto input = x.clone().requires_grad_();
    const auto y = policy([&] { return at::conv2d(input, policy.model->kernel, {}, {2, 2}, {1, 1}); });
    y.backward(g);
    return std::tuple{Products{y.detach(), input.grad(), policy.model->kernel.grad()}, policy.model->kernel.detach()};
  };
  for (const std::string sums : {"", "\nunit = {fraction = 23}"}) {
    CAPTURE(sums);
    const auto form = sums.empty() ? "e7m16" : "e8m10";
    const auto [rotated, w] = convolved("forward = '" + std::string(form) + "'\nrotate = {dw = 8}" + sums);
    const auto plain = std::get<0>(convolved("forward = '" + std::string(form) + "'" + sums));
    CHECK(torch::equal(rotated.y, plain.y));
    CHECK(torch::equal(rotated.dx, plain.dx));
    CHECK_FALSE(torch::equal(rotated.dw, plain.dw));
    CHECK(torch::allclose(rotated.dw, plain.dw, 1e-2, 2e-2));
  }
  const auto [square, w] = convolved("forward = 'mxfp4'\noperands = {w = {square_weights = true}, g = 'fp32'}");
  const auto format = tensor_format("mxfp4");
  const auto blocks = round_to(w.permute({2, 3, 0, 1}).reshape({9, 8, 4}), format, {32, 32});
  const auto kernel = blocks.view({3, 3, 8, 4}).permute({2, 3, 0, 1});
  auto again = torch::zeros_like(x).requires_grad_();
  at::conv2d(again, kernel, {}, {2, 2}, {1, 1}).backward(g);
  CHECK(torch::allclose(square.dx, again.grad(), 1e-5, 1e-5));
  const auto xq = round_to(x.view({11, 4, 49}), format, {32, 1}).view(x.sizes());
  CHECK(torch::allclose(square.y, at::conv2d(xq, kernel, {}, {2, 2}, {1, 1}), 1e-5, 1e-5));
}

TEST_CASE("format: fp32 as a format does not round, also for the operands of one product") {
  const auto x = torch::randn({8, 64}), g = torch::randn({8, 48});
  Policy forward_only("forward = 'e4m3'\noperands = {g = 'fp32'}");
  const auto format = scaled("e4m3");
  const auto w = round_to(forward_only.model->weight.detach(), format);
  auto found = linear(forward_only, x, g);
  CHECK(torch::allclose(found.dx, at::matmul(g, w), 1e-6, 1e-6));
  CHECK(torch::allclose(found.dw, at::matmul(g.t(), round_to(x, format)), 1e-6, 1e-6));
  Policy exact_dw("forward = 'e2m1'\noperands = {dw = {x = 'fp32', g = 'fp32'}}");
  found = linear(exact_dw, x, g);
  CHECK(torch::allclose(found.dw, at::matmul(g.t(), x), 1e-6, 1e-6));
}

TEST_CASE("format: a format of one's own is the named one that it describes") {
  const std::string own = R"([[precision.format]]
name = 'mine'
exponent = 2
mantissa = 1
nan = 'none'
block = 16
scale = 'e4m3'
tensor_scale = true
)";
  const auto x = torch::randn({8, 64}), g = torch::randn({8, 48});
  Policy mine("forward = 'mine'\n" + own), named("forward = 'nvfp4'");
  const auto a = linear(mine, x, g), b = linear(named, x, g);
  CHECK(torch::equal(a.y, b.y));
  CHECK(torch::equal(a.dx, b.dx));
  CHECK(torch::equal(a.dw, b.dw));
}

TEST_CASE("format: stochastic rounding repeats with the seed, and what is not covered is named") {
  Policy policy("forward = 'e2m1'\noperands = {g = {rounding = 'stochastic', random_bits = 8}}");
  const auto x = torch::randn({8, 64}), g = torch::randn({8, 48});
  const auto gradients = [&](int seed) {
    torch::manual_seed(seed);
    return linear(policy, x, g).dx;
  };
  const auto once = gradients(1);
  CHECK(torch::equal(gradients(1), once));
  CHECK_FALSE(torch::equal(gradients(2), once));
  Policy other("forward = 'e2m1'");
  const auto query = torch::randn({1, 2, 4, 8});
  other([&] { return at::scaled_dot_product_attention(query, query, query); });
  REQUIRE_FALSE(told().empty());
  CHECK(says(told().back(), "not rounded, because this policy has no format for them: scaled_dot_product_attention"));
}

namespace {

struct Operator {
  const char* name;  // the log shows this name
  std::function<Tensor()> call;
};

Tensor two(std::initializer_list<std::int64_t> sizes) {
  return torch::randn(torch::IntArrayRef(sizes.begin(), sizes.size()));
}

// Operators that multiply in one way or another.
std::vector<Operator> products_of_all_kinds() {
  torch::manual_seed(8);
  const auto m = two({8, 8}), n = two({8, 8}), v = two({8}), b = two({3, 8, 8}), x = two({2, 4, 8, 8});
  const auto w = two({4, 4, 2, 2}), lines = two({2, 4, 8}), kernel = two({4, 4, 4});
  return {{"matmul", [=] { return at::matmul(m, v); }},
          {"matmul", [=] { return at::matmul(v, m); }},
          {"matmul", [=] { return at::matmul(v, v); }},
          {"matmul", [=] { return at::matmul(b, v); }},
          {"matmul", [=] { return at::matmul(v, b); }},
          {"mv", [=] { return at::mv(m, v); }},
          {"linear", [=] { return at::linear(v, m); }},
          {"linear", [=] { return at::linear(m, v); }},
          {"addmm", [=] { return at::addmm(m, m, n, 0.5, 2); }},
          {"addmv", [=] { return at::addmv(v, m, v, 0.5, 2); }},
          {"baddbmm", [=] { return at::baddbmm(b, b, b, 0, 2); }},
          {"addbmm", [=] { return at::addbmm(m, b, b); }},
          {"addr", [=] { return at::addr(m, v, v); }},
          {"dot", [=] { return at::dot(v, v); }},
          {"vdot", [=] { return at::vdot(v, v); }},
          {"inner", [=] { return at::inner(m, n); }},
          {"inner", [=] { return at::inner(v, v); }},
          {"outer", [=] { return at::outer(v, v); }},
          {"kron", [=] { return at::kron(m, n); }},
          {"tensordot", [=] { return at::tensordot(b, m, {2}, {0}); }},
          {"chain_matmul",
           [=] {
             return at::chain_matmul({m, n, m});
           }},
          {"linalg_multi_dot",
           [=] {
             return at::linalg_multi_dot({m, n, m});
           }},
          {"linalg_matrix_power", [=] { return at::linalg_matrix_power(m, 3); }},
          {"linalg_vecdot", [=] { return at::linalg_vecdot(m, n); }},
          {"linalg_inv", [=] { return at::linalg_inv(m); }},
          {"linalg_solve", [=] { return at::linalg_solve(m, v); }},
          {"matrix_exp", [=] { return at::matrix_exp(m); }},
          {"fft_rfft", [=] { return at::abs(at::fft_rfft(v)); }},
          {"einsum",
           [=] {
             return at::einsum("ij,kj->ik", {m, n});
           }},
          {"bilinear", [=] { return at::bilinear(m, n, b, {}); }},
          {"cdist", [=] { return at::cdist(m, n); }},
          {"cdist",
           [=] {
             return at::cdist(two({40, 8}), two({40, 8}));
           }},
          {"cosine_similarity", [=] { return at::cosine_similarity(m, n); }},
          {"conv1d", [=] { return at::conv1d(lines, kernel, {}, 1, "same"); }},
          {"conv2d", [=] { return at::conv2d(x, w, {}, 1, "same"); }},
          {"conv2d", [=] { return at::conv2d(x, w, {}, 1, "same", 3); }},
          {"conv2d",
           [=] {
             return at::conv2d(x, two({4, 4, 2, 3}), {}, 1, "same");
           }},
          {"conv2d", [=] { return at::conv2d(x[0], w, {}, 1, "same"); }},
          {"conv3d",
           [=] {
             return at::conv3d(two({1, 2, 4, 4, 4}), two({2, 2, 2, 3, 4}), {}, 1, "same");
           }},
          {"conv_tbc",
           [=] {
             return at::conv_tbc(two({8, 2, 4}), two({3, 4, 5}), two({5}));
           }},
          {"conv_transpose2d", [=] { return at::conv_transpose2d(x, w); }},
          {"convolution",
           [=] {
             return at::convolution(x, w, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
           }},
          {"gru_cell",
           [=] {
             return at::gru_cell(m, m, two({24, 8}), two({24, 8}));
           }},
          {"lstm_cell",
           [=] {
             return std::get<0>(at::lstm_cell(m, {m, m}, two({32, 8}), two({32, 8})));
           }},
          {"rnn_tanh_cell", [=] { return at::rnn_tanh_cell(m, m, m, n); }},
          {"scaled_dot_product_attention", [=] { return at::scaled_dot_product_attention(x, x, x); }}};
}

// Those that do not.
std::vector<Operator> other_operators() {
  torch::manual_seed(9);
  const auto m = two({8, 8}), n = two({8, 8}), x = two({2, 4, 8, 8}), ones = torch::ones({8});
  const auto labels = torch::arange(8);
  return {{"add", [=] { return m + n; }},
          {"mul", [=] { return m * n; }},
          {"cat",
           [=] {
             return torch::cat({m, n});
           }},
          {"stack",
           [=] {
             return torch::stack({m, n});
           }},
          {"where", [=] { return at::where(m > 0, m, n); }},
          {"layer_norm", [=] { return at::layer_norm(m, {8}, ones, ones); }},
          {"batch_norm", [=] { return at::batch_norm(m, ones, ones, {}, {}, true, 0.1, 1e-5, false); }},
          {"group_norm", [=] { return at::group_norm(x, 2, two({4}), two({4})); }},
          {"linalg_vector_norm", [=] { return at::linalg_vector_norm(m); }},
          {"embedding", [=] { return at::embedding(m, labels); }},
          {"gather",
           [=] {
             return at::gather(m, 0, labels.view({1, 8}));
           }},
          {"scatter_add",
           [=] {
             return at::scatter_add(m, 0, labels.view({1, 8}), n);
           }},
          {"mse_loss", [=] { return at::mse_loss(m, n); }},
          {"smooth_l1_loss", [=] { return at::smooth_l1_loss(m, n); }},
          {"kl_div", [=] { return at::kl_div(m, n.softmax(1)); }},
          {"binary_cross_entropy_with_logits", [=] { return at::binary_cross_entropy_with_logits(m, n.sigmoid()); }},
          {"cross_entropy_loss", [=] { return at::cross_entropy_loss(m, labels); }},
          {"upsample_bilinear2d",
           [=] {
             return at::upsample_bilinear2d(x, {16, 16}, false);
           }},
          {"upsample_linear1d", [=] { return at::upsample_linear1d(x[0], {16}, false); }},
          {"max_pool2d", [=] { return at::max_pool2d(x, 2); }},
          {"prelu", [=] { return at::prelu(m, ones); }},
          {"lgamma", [=] { return at::lgamma(m.abs()); }},
          {"matmul of whole numbers", [=] { return at::matmul(labels, labels); }}};
}

}  // namespace

TEST_CASE("format: each operator that multiplies is rounded, or the log names it") {
  for (const auto& [name, call] : products_of_all_kinds()) {
    CAPTURE(name);
    for (const std::string more : {"", "[[precision.rule]]\nmatch = '*'\nuse = 'fp32'\n"}) {
      if (!more.empty() && std::ranges::count(vernier::operators(), name) == 0) continue;  // rules are for those
      Policy policy("forward = 'e2m1'\n" + more);
      torch::manual_seed(3);
      const auto exact = call();
      torch::manual_seed(3);
      const auto y = policy(call);
      CHECK(y.sizes() == exact.sizes());
      const auto line = "not rounded, because this policy has no format for them: " + std::string(name);
      const bool is_named = std::ranges::count(told(), line) == 1, is_rounded = !torch::equal(y, exact);
      CHECK(is_named == (more.empty() && !is_rounded));
      if (!more.empty()) CHECK_FALSE(is_rounded);
      if (is_rounded) CHECK((y - exact).norm().item<double>() < 0.9 * exact.norm().item<double>());
    }
  }
  for (const auto& [name, call] : other_operators()) {
    CAPTURE(name);
    Policy policy("forward = 'e2m1'");
    policy(call);
    for (const auto& line : told()) CHECK_FALSE_MESSAGE(says(line, "not rounded"), line);
  }
}

TEST_CASE("format: operators of other libraries are named where they take two tensors, unless they are pointwise") {
  torch::Library library(torch::Library::DEF, "strangers", std::nullopt, __FILE__, __LINE__);
  const auto product = [](const Tensor& a, const Tensor& b) { return a * b; };
  library.def("gemm(Tensor a, Tensor b) -> Tensor");
  library.def("join(Tensor a, Tensor b) -> Tensor", {at::Tag::pointwise});
  library.def("flip(Tensor a) -> Tensor");
  library.impl("gemm", c10::DispatchKey::CPU, product);
  library.impl("join", c10::DispatchKey::CPU, product);
  library.impl("flip", c10::DispatchKey::CPU, [](const Tensor& a) { return -a; });
  const auto called = [](const char* name, const std::vector<Tensor>& inputs) {
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
    return stack.at(0).toTensor();
  };
  Policy policy("forward = 'e2m1'");
  const torch::NoGradGuard no_gradient;
  const auto x = torch::randn({8, 8});
  policy([&] { return called("strangers::join", {x, x}) + called("strangers::flip", {x}); });
  CHECK(std::ranges::none_of(told(), [](const auto& line) { return says(line, "not rounded"); }));
  policy([&] { return called("strangers::gemm", {x, x}); });
  CHECK(told().back().ends_with("has no format for them: strangers::gemm"));
}

TEST_CASE("format: what is not rounded is named once, in a validation and in a later step too, with its layer") {
  Policy policy("forward = 'e2m1'");
  const auto v = torch::randn({64});
  const auto names = [&] {
    return std::ranges::count_if(told(), [](const auto& line) { return says(line, "not rounded"); });
  };
  policy([&] { return at::linear(v, policy.model->weight); });
  CHECK(names() == 0);
  {
    const torch::NoGradGuard validation;
    policy([&] { return at::einsum("ij,j->i", {policy.model->weight, v}); });
  }
  CHECK(names() == 1);
  CHECK(says(told().back(), ": einsum of"));
  policy([&] { return at::einsum("ij,j->i", {policy.model->weight, v}); });
  CHECK(names() == 1);
  policy([&] { return at::dot(v, v) + at::einsum("ij,j->i", {policy.model->weight, v}).sum(); });
  CHECK(names() == 2);
  CHECK(told().back().ends_with(": dot"));
}

TEST_CASE("format: a convolution with an even kernel and padding = \"same\" is that of the padded input") {
  Policy policy("forward = 'e2m1'");
  const auto x = torch::randn({2, 4, 9, 7}), w = torch::randn({8, 4, 2, 4}), g = torch::randn({2, 8, 9, 7});
  const auto gradients = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& convolved) {
    const auto input = x.clone().requires_grad_(), weight = w.clone().requires_grad_();
    const auto y = policy([&] { return convolved(input, weight); });
    y.backward(g);
    return std::vector{y.detach(), input.grad(), weight.grad()};
  };
  const auto same = gradients([](const Tensor& a, const Tensor& b) { return at::conv2d(a, b, {}, 1, "same"); });
  const auto padded = gradients([](const Tensor& a, const Tensor& b) {
    return at::conv2d(at::constant_pad_nd(a, {1, 2, 0, 1}), b);
  });
  for (std::size_t i = 0; i < same.size(); ++i) CHECK(torch::allclose(same[i], padded[i], 1e-5, 1e-5));
  CHECK_THROWS(policy([&] { return at::conv2d(x, w, {}, 2, "same"); }));
}

TEST_CASE("format: a product with a vector is that of a matrix of one row or column") {
  Policy policy("forward = 'mxfp4'");
  const auto matrix = torch::randn({48, 64}), row = torch::randn({48}), column = torch::randn({64});
  const auto same = [&](const std::function<Tensor()>& one, const std::function<Tensor()>& other) {
    CHECK(torch::equal(policy(one), policy(other)));
  };
  same([&] { return at::matmul(matrix, column); }, [&] { return at::matmul(matrix, column.unsqueeze(1)).squeeze(1); });
  same([&] { return at::mv(matrix, column); }, [&] { return at::mm(matrix, column.unsqueeze(1)).squeeze(1); });
  same([&] { return at::matmul(row, matrix); }, [&] { return at::matmul(row.unsqueeze(0), matrix).squeeze(0); });
  same([&] { return at::addmv(row, matrix, column, 3, 2); },
       [&] { return at::mm(matrix, column.unsqueeze(1)).squeeze(1) * 2 + row * 3; });
}

TEST_CASE("format: a rule keeps a layer out, and everything else is in the dtype of `otherwise`") {
  const auto x = torch::randn({8, 64});
  Policy policy("forward = 'e2m1'\notherwise = 'bf16'\n[[precision.rule]]\nmatch = ''\nuse = 'fp32'\n");
  const auto y = policy([&] { return at::linear(x, policy.model->weight, policy.model->bias); });
  CHECK(torch::equal(y, at::linear(x, policy.model->weight, policy.model->bias)));
  Policy rounds("forward = 'e2m1'\notherwise = 'bf16'");
  CHECK((rounds([&] { return at::linear(x, rounds.model->weight); }).scalar_type() == torch::kBFloat16));
  CHECK(rounds.plugin->is_mixed());
  CHECK_FALSE(rounds.plugin->needs_scaler());
  CHECK(rounds.plugin->emulated() == "e2m1");
}

namespace {

constexpr const char* small = R"([run]
steps = 6
[task]
use = 'mlp'
[optimizer]
use = 'sgd'
learning_rate = 0.1
[checkpoint]
use = 'none'
[precision]
use = 'format'
)";

}  // namespace

TEST_CASE("format: a run measures what rounding does, by layer and operand") {
  const TemporaryFolder output;
  SmallRun run(from_toml({std::string(small) + "forward = 'mxfp8'\nmeasure_every = 3\n"}), output.path().string());
  int measured = 0;
  Tensor weight;  // the weight that the step computes with
  run.on(vernier::Event::StepBegin, [&](vernier::Run& now) { weight = now.parameters[0].model.detach().clone(); });
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
    const auto signal = now.metrics.value("format_sqnr/layers.0/x");
    CHECK(signal.has_value() == (now.step % 3 == 1));  // the first step, and every third after it
    if (!signal) return;
    ++measured;
    CHECK(*signal > 24);
    CHECK(*signal < 40);
    CHECK(*now.metrics.value("format_saturated/layers.0/w") < 0.1);
    CHECK(now.metrics.value("format_flushed/layers.0/g").has_value());
    CHECK(*now.metrics.value("format_amax/layers.0/x") > 0);
    CHECK(*now.metrics.value("format_used_codes/layers.0/x") > 0.3);
    CHECK(*now.metrics.value("format_used_codes/layers.0/x") < 1);
    const auto direction = *now.metrics.value("format_direction/layers.0");
    CHECK(direction > 0.95);
    CHECK(direction < 1 - 1e-9);
    // With an angle a between both, the noise is at least sin a of the gradient.
    const auto over_noise = *now.metrics.value("format_gradient_to_noise/layers.0");
    CHECK(over_noise > 1);
    CHECK(over_noise <= 1 / std::sqrt(1 - direction * direction) * (1 + 1e-6));
    double blocks = 0, full = 0, most = 0, least = HUGE_VAL;
    for (std::int64_t i = 0; i < weight.size(0); ++i) {
      for (std::int64_t j = 0; j < weight.size(1); j += 32) {
        const auto amax = weight[i].slice(0, j, j + 32).abs().max().item<double>();
        const auto scale = std::exp2(std::floor(std::log2(amax)) - 8);
        full += vernier::number_format("e4m3").round(amax / scale) == 448 ? 1 : 0;
        blocks += 1;
        most = std::max(most, amax);
        least = std::min(least, amax);
      }
    }
    CHECK(*now.metrics.value("format_full_blocks/layers.0/w") == doctest::Approx(full / blocks));
    CHECK(*now.metrics.value("format_scale_spread/layers.0/w") == doctest::Approx(std::log2(most / least)));
  });
  run.train();
  CHECK(measured == 2);
}

TEST_CASE("format: measuring changes no number of a run, and a format that loses nothing keeps the direction") {
  std::vector<Tensor> ends;
  const std::string measure = "measure_every = 1\n", recheck = "[[callback]]\nuse = 'recheck'\nevery = 2\n";
  for (const auto& more : {std::string(), measure, recheck, measure + recheck}) {
    const TemporaryFolder output;
    const auto options = std::string(small) +
                         "forward = 'e3m2'\noperands = {x = {use = 'lsq', learning_rate = 0.5}, g = {rounding = "
                         "'stochastic'}}\n" +
                         more;
    SmallRun run(from_toml({options}), output.path().string());
    run.on(vernier::Event::RunEnd, [&](vernier::Run& now) { ends.push_back(now.parameters[0].model.clone()); });
    run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
      for (const auto& notice : now.notices) CHECK(notice.name != "recheck");  // it would report a fault of the machine
    });
    run.train();
  }
  REQUIRE(ends.size() == 4);
  for (const auto& end : ends) CHECK(torch::equal(ends[0], end));
  const TemporaryFolder output;
  SmallRun run(from_toml({std::string(small) + "forward = 'e8m15'\nmeasure_every = 1\n"}), output.path().string());
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
    CHECK(*now.metrics.value("format_direction/layers.0") == doctest::Approx(1).epsilon(1e-6));
  });
  run.train();
}

TEST_CASE("format: evaluations between the steps change no number of a run whose rounding is random") {
  for (const char* options :
       {"forward = 'e3m2'\noperands = {x = {rounding = 'stochastic'}, w = {rounding = 'stochastic'}}\n",
        "forward = 'mxfp8'\noperands = {x = {rounding = 'stochastic'}, g = {rounding = 'stochastic'}}\n",
        "forward = 'fp32'\noperands = {weight = {use = 'bf16', rounding = 'stochastic'}}\n",
        "forward = 'e3m2'\noperands = {g = {rounding = 'stochastic'}}\n"}) {
    CAPTURE(options);
    std::vector<Tensor> ends;
    for (const bool evaluates : {false, true}) {
      const TemporaryFolder output;
      SmallRun run(from_toml({std::string(small) + options}), output.path().string());
      run.on(vernier::Event::StepEnd, [&](vernier::Run&) {
        if (evaluates) run.trainer->validation().evaluate(run.run);
      });
      run.train();
      ends.push_back(run.run.parameters[0].model.clone());
    }
    CHECK(torch::equal(ends[0], ends[1]));
  }
}

TEST_CASE("format: weights of a format are numbers of it after every update") {
  const TemporaryFolder output;
  SmallRun run(
      from_toml({std::string(small) + "forward = 'fp32'\noperands = {weight = {use = 'e5m2', scaling = 'none'}}\n"}),
      output.path().string());
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
    const auto& weight = now.parameters[0].model;
    CHECK(torch::equal(weight, round_to(weight, tensor_format("e5m2"))));
  });
  run.train();
}

namespace {

std::string with_state(const std::string& optimizer, const std::string& precision, const std::string& task = "") {
  return "[run]\nsteps = 6\n[optimizer]\nuse = '" + optimizer +
         "'\n[checkpoint]\nuse = 'rolling'\nevery = 100\n[precision]\nuse = 'format'\n" + precision +
         "[task]\nuse = 'mlp'\n" + task;
}

}  // namespace

TEST_CASE("format: averages of the optimizer are numbers of a format after every update, and again after a resume") {
  struct Row {
    std::string name, optimizer;
    int averages;  // the averages of four parameters
  };
  const Row rows[] = {{"e5m2', scaling = 'none", "adamw", 8},
                      {"mxfp8", "adamw", 8},
                      {"mxint8", "adamw", 8},
                      {"mxfp8", "adamw'\n[[optimizer.group]]\nmatch = '*.bias'\nuse = 'lion", 6}};
  for (const auto& [name, optimizer, averages] : rows) {
    CAPTURE(name);
    CAPTURE(optimizer);
    const auto format = tensor_format(name.substr(0, name.find('\'')));
    const auto config = from_toml({with_state(
        optimizer, "forward = 'fp32'\noperands = {state = {use = '" + name + "', rounding = 'stochastic'}}\n")});
    const TemporaryFolder whole, parts;
    SmallRun run(config, whole.path().string());
    int seen = 0;
    run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
      const auto state = now.control->snapshot().part("plugin/optimizer/adamw");
      for (const auto& [entry, tensor] : state.tensors) {
        if (tensor.dim() == 0) continue;
        ++seen;
        const auto rows = tensor.reshape({tensor.dim() < 2 ? 1 : tensor.size(0), -1});
        // The scale of a tensor is found anew, and may be one last bit off.
        CHECK(torch::allclose(rows, rounded(rows, format, 1), 1e-6, 0));
      }
    });
    run.train();
    CHECK(seen == 6 * averages);
    {
      SmallRun first(config, parts.path().string());
      first.stop_after(3);
      first.train();
    }
    SmallRun second(config, parts.path().string());
    REQUIRE(second.resume());
    second.train();
    CHECK(second.digest() == run.digest());
  }
}

TEST_CASE("format: a delayed scale comes from the magnitudes of earlier updates, also after a resume") {
  const auto config = [](const std::string& more) {
    return from_toml({with_state("adamw",
                                 "operands = {x = {use = 'delayed', amax_history_len = 4}, w = 'delayed', g = {use = "
                                 "'delayed', format = 'e5m2', amax_history_len = 4}}\n" +
                                     more)});
  };
  const TemporaryFolder measured, whole, parts;
  SmallRun looks(config("measure_every = 1\n"), measured.path().string());
  std::vector<double> magnitudes;
  looks.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
    magnitudes.push_back(*now.metrics.value("format_amax/layers.0/g"));
    const auto past = now.control->snapshot().part("plugin/precision/format/quantizer/g/layers.0/dw.g");
    const auto first = magnitudes.end() - std::min<std::ptrdiff_t>(4, static_cast<std::ptrdiff_t>(magnitudes.size()));
    CHECK(past.real("amax") == *std::max_element(first, magnitudes.end()));
  });
  looks.train();
  SmallRun run(config(""), whole.path().string());
  run.train();
  CHECK(run.digest() == looks.digest());
  {
    SmallRun first(config(""), parts.path().string());
    first.stop_after(3);
    first.train();
  }
  SmallRun second(config(""), parts.path().string());
  REQUIRE(second.resume());
  second.train();
  CHECK(second.digest() == run.digest());
  const TemporaryFolder other;
  SmallRun current(from_toml({with_state("adamw", "operands = {g = 'e5m2'}\n")}), other.path().string());
  current.train();
  CHECK(current.digest() != run.digest());
}

TEST_CASE("format: an optimizer without averages in float32 is refused, with the place of the option") {
  struct Row {
    const char *optimizer, *text;
  };
  const Row rows[] = {
      {"sgd", "the optimizer keeps no averages"},
      {"adamw'\nstate = '8bit", "write state = \"float32\""},
      {"adam'\nstate = 'bf16", "in BFloat16"},
      {"lbfgs", "for optimizers that keep averages of each parameter"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.optimizer));
    const TemporaryFolder output;
    const auto refusal = thrown_by([&] {
      const auto config = with_state(row.optimizer, "operands = {state = 'e4m3'}\n", "hidden = [160]\n");
      SmallRun run(from_toml({config}), output.path().string());
      run.train();
    });
    CHECK_MESSAGE(says(refusal.text, row.text), refusal);
    CHECK_MESSAGE(says(refusal.text, "0.toml:"), refusal);
  }
}

TEST_CASE("format: blocks need not divide, and a rule that names an operator without a format is refused") {
  Policy lenient("forward = 'mxfp8'");
  const auto x = torch::randn({8, 64});
  CHECK(linear(lenient, x, torch::randn({8, 48})).y.sizes() == torch::IntArrayRef({8, 48}));  // dx sums over 48
  Policy named("[[precision.rule]]\nop = 'scaled_dot_product_attention'\n");
  const auto query = torch::randn({1, 2, 4, 8});
  const auto refusal = thrown_by([&] { named([&] { return at::scaled_dot_product_attention(query, query, query); }); });
  CHECK_MESSAGE(says(refusal.text, "which precision/format does not round; write use = \"fp32\""), refusal);
}

TEST_CASE("format: bad options end in one line") {
  struct Row {
    const char *options, *key, *text;
  };
  const Row rows[] = {
      {"forward = 'e4m4m'", "forward", "there is no number format"},
      {"forward = 'nvpf4'", "forward", "did you mean \"nvfp4\"?"},
      {"forward = 'e8m0'", "operands.x", "neither sign nor zero"},
      {"operands = {g = 'e8m0'}", "operands.g", "neither sign nor zero"},
      {"forward = 'fp32'", "forward", "nothing else is rounded"},
      {"operands = {x = {scale_rule = 'floor'}}", "scale_rule", "powers of two"},
      {"operands = {x = {use = 'mxfp8', scaling = 'none'}}", "scaling", "without blocks"},
      {"rotate = {dw = 12}", "dw", "a power of two"},
      {"operands = {w = {use = 'delayed', format = 'mxfp8'}}", "format", "take one without, as e4m3"},
      {"rotate = {dw = 16}\noperands = {g = 'fp32'}", "rotate", "one of them is fp32"},
      {"operands = {g = {random_bits = 4}}", "random_bits", "stochastic"},
      {"operands = {w = {square_weights = true}}", "square_weights", "blocks"},
      {"operands = {x = {use = 'nvfp4', square_weights = true}}", "square_weights", "operands w"},
      {"operands = {x = {rounding = 'up'}}", "rounding", "nearest"},
      {"operands = {state = {use = 'bf16', from = 'codes'}}", "from", "is for dx.w, dw.x and dw.g"},
      {"backward = 'e5m2'", "backward", "write operands = {g = \"e5m2\"}"},
      {"rounding = 'stochastic'", "rounding", "write operands = {x = {rounding = \"stochastic\"}"},
      {"optimizer_state = 'bf16'", "optimizer_state", "write operands = {state = \"bf16\"}"},
      {"scaling = 'delayed'", "scaling", "w = \"delayed\"}"},
      {"[[precision.format]]\nname = 'a'\nexponent = 1\nnan = 'ieee'", "format.exponent", "cannot be"},
      {"[[precision.format]]\nname = 'a'\nnan = 'one'\ninfinities = true", "format.exponent", "infinities are for"},
      {"[[precision.format]]\nname = 'a'\nelement = 'e4m3'\nbias = 3", "format.bias", "without `element`"},
      {"[[precision.format]]\nname = 'a'\nscale = 'e4m3'", "format.scale", "give `block`"},
      {"[[precision.format]]\nname = 'a'\nblock = 16\nscale = 'e4m3'\nrule = 'floor'", "format.rule", "e8m0"},
      {"[[precision.format]]\nname = 'a'\nblock = 16\nsaturate = false", "format.saturate", "leave it out"},
      {"[[precision.format]]\nname = 'a'\nblock = 16\ntensor_scale = true", "format.tensor_scale", "few exponent bits"},
      {"[[precision.format]]\nname = 'a'\n[[precision.format]]\nname = 'a'", "format.name", "twice"},
      {"[[precision.format]]\nname = 'a'\nexponent = 8\nmantissa = 16", "format.exponent", "2 to 24"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    const auto refusal = thrown_by([&] { Policy policy(row.options); });
    CHECK(refusal.kind == 2);
    CHECK_MESSAGE(says(refusal.text, row.text), refusal);
    CHECK_MESSAGE(says(refusal.text, std::string(row.key).substr(std::string(row.key).find('.') + 1)), refusal);
  }
}

}  // namespace format_test
