// The element-wise kernels on a CPU: against LibTorch's own in float64 and in float32, and where they leave the work to
// LibTorch.
#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <vernier/fused_kernels.h>

#include <cmath>
#include <functional>
#include <limits>

namespace fused_kernels_test {

namespace {

struct Fused {
  explicit Fused(bool on = true) : before(vernier::fused_kernels()) { vernier::use_fused_kernels(on); }
  ~Fused() { vernier::use_fused_kernels(before); }
  bool before;
};

struct Operator {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  std::function<torch::Tensor(const torch::Tensor& dy, const torch::Tensor&)> backward;
};

std::vector<Operator> all_operators() {
  return {{"gelu tanh", [](const auto& x) { return at::gelu(x, "tanh"); },
           [](const auto& dy, const auto& x) { return at::gelu_backward(dy, x, "tanh"); }},
          {"gelu erf", [](const auto& x) { return at::gelu(x, "none"); },
           [](const auto& dy, const auto& x) { return at::gelu_backward(dy, x, "none"); }},
          {"silu", [](const auto& x) { return at::silu(x); },
           [](const auto& dy, const auto& x) { return at::silu_backward(dy, x); }}};
}

torch::Tensor plain(const std::function<torch::Tensor()>& body) {
  const Fused off(false);
  return body();
}

// The error of each element in units of the last place of the exact one.
torch::Tensor ulps(const torch::Tensor& computed, const torch::Tensor& exact, torch::ScalarType dtype) {
  const double digits = dtype == torch::kFloat32 ? 23 : dtype == torch::kHalf ? 10 : 7;
  const double least = dtype == torch::kHalf ? 0x1p-14 : 1e-37;  // below, the places stay as they are
  const auto exponent = torch::floor(torch::log2(exact.abs().clamp_min(least)));
  return (computed.to(torch::kFloat64) - exact).abs() / torch::exp2(exponent - digits);
}

}  // namespace

TEST_CASE("fused kernels: no result is further from the exact one than LibTorch's by more than 2.5 ulp") {
  const Fused on;
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    torch::manual_seed(1);
    const auto x = torch::cat({torch::linspace(-12, 12, 100'001), torch::randn({100'000})}).to(dtype);
    const auto exact_x = x.to(torch::kFloat64), ones = torch::ones_like(x);
    for (const auto& [name, forward, backward] : all_operators()) {
      if (name == "gelu erf") continue;  // LibTorch's
      CAPTURE(name);
      CAPTURE(dtype);
      const auto exact = forward(exact_x);
      const auto counts = exact.abs() > 1e-8;  // below, LibTorch's has no correct digit, in float64 too few
      const auto mine = ulps(forward(x), exact, dtype).masked_select(counts);
      const auto libtorchs = ulps(plain([&] { return forward(x); }), exact, dtype).masked_select(counts);
      CHECK((mine - libtorchs).max().item<double>() < 2.5);
      CHECK(mine.max().item<double>() < 3);
      // A derivative is 0 somewhere: its error is one of the sum of terms of size 1.
      const auto slope = backward(exact_x.new_ones(exact_x.sizes()), exact_x);
      const double unit = dtype == torch::kFloat32 ? 0x1p-23 : dtype == torch::kHalf ? 0x1p-10 : 0x1p-7;
      CHECK((backward(ones, x).to(torch::kFloat64) - slope).abs().max().item<double>() < 2 * unit);
    }
  }
}

TEST_CASE("fused kernels: inf, NaN and numbers at both ends of the range") {
  const Fused on;
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto x = torch::tensor({nan, inf, 0.0F, -0.0F, 1e30F, -1e30F, 3e38F, -3e38F, 1e-40F, -1e-40F});
  for (const auto& [name, forward, backward] : all_operators()) {
    CAPTURE(name);
    CHECK(torch::allclose(forward(x), plain([&] { return forward(x); }), 0, 1e-44, /*equal_nan=*/true));
    const auto slope = backward(torch::ones_like(x), x);
    CHECK(slope[0].isnan().item<bool>());
    CHECK(slope[2].item<float>() == 0.5F);
    CHECK(slope[8].item<float>() == 0.5F);
  }
}

TEST_CASE("fused kernels: an element has the same bits on any number of threads, and anywhere in a tensor") {
  const Fused on;
  const int threads = at::get_num_threads();
  const auto x = torch::randn({100'003}), dy = torch::randn({100'003});
  for (const auto& [name, forward, backward] : all_operators()) {
    if (name == "gelu erf") continue;
    CAPTURE(name);
    at::set_num_threads(1);
    const auto y = forward(x), dx = backward(dy, x);
    at::set_num_threads(4);
    CHECK(torch::equal(forward(x), y));
    CHECK(torch::equal(backward(dy, x), dx));
    at::set_num_threads(threads);
    for (const std::int64_t start : {1, 7, 8191, 99'990}) {
      CHECK(torch::equal(forward(x.narrow(0, start, 13)), y.narrow(0, start, 13)));
      CHECK(torch::equal(backward(dy.narrow(0, start, 13), x.narrow(0, start, 13)), dx.narrow(0, start, 13)));
    }
  }
}

TEST_CASE("fused kernels: any layout; gradients flow through them; other dtypes are LibTorch's") {
  const Fused on;
  const auto image = torch::randn({2, 5, 4, 3});
  const std::pair<const char*, torch::Tensor> layouts[] = {
      {"contiguous", image},
      {"channels last", image.contiguous(torch::MemoryFormat::ChannelsLast)},
      {"transposed", image.transpose(1, 3)},
      {"with gaps", image.slice(3, 0, 3, 2)},
      {"expanded", image.select(1, 0).unsqueeze(1).expand({2, 5, 4, 3})},
      {"no elements", image.narrow(0, 0, 0)},
      {"0-dim", torch::tensor(0.5F)}};
  for (const auto& [name, forward, backward] : all_operators()) {
    for (const auto& [layout, tensor] : layouts) {
      CAPTURE(name);
      CAPTURE(layout);
      auto leaf = tensor.detach().requires_grad_();
      const auto y = forward(leaf);
      const auto expected = plain([&] { return forward(tensor); });
      CHECK(torch::allclose(y, expected, 1e-6, 1e-7));
      CHECK(y.strides() == expected.strides());
      const auto dy = torch::randn_like(y);
      const auto gradient = torch::autograd::grad({y}, {leaf}, {dy}).front();
      CHECK(torch::allclose(gradient, plain([&] { return backward(dy, tensor); }), 1e-5, 1e-6));
    }
    const auto x = image.to(torch::kFloat64);
    CHECK(torch::equal(forward(x), plain([&] { return forward(x); })));
  }
}

namespace {

// Over rows, each with weight and bias where it has them.
struct RowOperator {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias)> forward;
};

std::vector<RowOperator> row_operators() {
  return {{"layer norm",
           [](const auto& x, const auto& w, const auto& b) { return at::layer_norm(x, w.sizes(), w, b, 1e-5); }},
          {"layer norm without weight",
           [](const auto& x, const auto& w, const auto&) { return at::layer_norm(x, w.sizes(), {}, {}, 1e-5); }},
          {"layer norm without bias",
           [](const auto& x, const auto& w, const auto&) { return at::layer_norm(x, w.sizes(), w, {}, 1e-5); }},
          {"softmax", [](const auto& x, const auto&, const auto&) { return at::softmax(x, -1); }},
          {"log softmax", [](const auto& x, const auto&, const auto&) { return at::log_softmax(x, -1); }}};
}

struct RowCase {
  torch::Tensor x, weight, bias, above;
  RowCase in(torch::ScalarType dtype) const { return {x.to(dtype), weight.to(dtype), bias.to(dtype), above.to(dtype)}; }
  // The output and the gradient of x.
  std::vector<torch::Tensor> run(const RowOperator& op, bool fused) const {
    const Fused choice(fused);
    const auto leaf = x.detach().requires_grad_();
    const auto y = op.forward(leaf, weight, bias);
    return {y.detach(), torch::autograd::grad({y}, {leaf}, {above}).front()};
  }
};

RowCase rows(std::int64_t count, std::int64_t columns) {
  return {3 * torch::randn({2, count, columns}) + 1, torch::randn({columns}), torch::randn({columns}),
          torch::randn({2, count, columns})};
}

double error_of(const torch::Tensor& computed, const torch::Tensor& exact) {
  return (computed.to(torch::kFloat64) - exact).abs().max().item<double>();
}

}  // namespace

TEST_CASE("fused kernels: errors over rows are not larger than LibTorch's, for rows of any length") {
  torch::manual_seed(2);
  for (const std::int64_t columns : {1, 2, 15, 16, 17, 31, 33, 64, 100, 1000, 5003}) {
    const auto given = rows(9, columns);
    given.x[1][8] += 1000;  // far from 0 the mean is less exact
    const auto exact_given = given.in(torch::kFloat64);
    for (const auto& op : row_operators()) {
      CAPTURE(columns);
      CAPTURE(op.name);
      const auto mine = given.run(op, true), theirs = given.run(op, false), exact = exact_given.run(op, false);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const double unit = exact[i].abs().max().item<double>() * 0x1p-23;
        CHECK(error_of(mine[i], exact[i]) <= (i == 0 ? 1 : 1.5) * error_of(theirs[i], exact[i]) + unit);
      }
    }
  }
}

TEST_CASE("fused kernels: rows have the same bits on any number of threads") {
  torch::manual_seed(3);
  const int threads = at::get_num_threads();
  const auto given = rows(700, 100);
  for (const auto& op : row_operators()) {
    CAPTURE(op.name);
    at::set_num_threads(1);
    const auto alone = given.run(op, true)[0];
    at::set_num_threads(4);
    CHECK(torch::equal(given.run(op, true)[0], alone));
    at::set_num_threads(threads);
  }
}

TEST_CASE("fused kernels: infinity, NaN and large numbers in rows") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto plain_rows = rows(3, 40);
  for (const auto& op : row_operators()) {
    CAPTURE(op.name);
    auto given = plain_rows.in(torch::kFloat64).in(torch::kFloat32);  // a copy
    given.x[1][0][7] = nan;
    if (op.name.find("softmax") != std::string::npos) {
      given.x[0][0].narrow(0, 5, 30).fill_(-inf);
      given.x[0][1].fill_(-inf);
      given.x[0][2][7] = inf;
      given.x[1][1] *= 1e30;
      given.x[1][2] -= 1e5;
    }
    const auto mine = given.run(op, true), theirs = given.run(op, false);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      CHECK(torch::equal(mine[i].isnan(), theirs[i].isnan()));
      CHECK(torch::allclose(mine[i], theirs[i], 1e-3, 1e-5, /*equal_nan=*/true));
    }
  }
}

TEST_CASE("fused kernels: a row whose variance is beyond float32's range becomes NaN, and not 0") {
  const Fused fused;
  for (const double size : {1e20, 1e30, 1e38}) {
    CAPTURE(size);
    CHECK(at::layer_norm(torch::randn({3, 40}) * size, {40}).isnan().all().item<bool>());
  }
}

TEST_CASE("fused kernels: rows in another layout, another dimension or dtype are LibTorch's, and none at all") {
  torch::manual_seed(4);
  const auto x = torch::randn({6, 40, 5});
  const std::pair<const char*, std::function<torch::Tensor()>> calls[] = {
      {"dimension", [&] { return at::log_softmax(x, 1); }},
      {"layout", [&] { return at::softmax(x.transpose(0, 2), -1); }},
      {"dtype", [&] { return at::log_softmax(x.to(torch::kBFloat16), -1); }},
      {"layer norm's dtype", [&] { return at::layer_norm(x.to(torch::kFloat64), {5}); }},
      {"0-dim", [&] { return at::softmax(torch::tensor(2.0F), 0); }},
      {"no rows", [&] {
         return at::layer_norm(x.narrow(0, 0, 0), {40, 5});
       }}};
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    const Fused on;
    CHECK(torch::equal(call(), plain(call)));
  }
  const Fused on;
  const auto whole = at::layer_norm(x, {40, 5});  // more than one dimension
  CHECK(torch::allclose(whole, plain([&] { return at::layer_norm(x, {40, 5}); }), 1e-5, 1e-6));
  CHECK_THROWS_AS(at::layer_norm(x, {7}), c10::Error);
}

}  // namespace fused_kernels_test
