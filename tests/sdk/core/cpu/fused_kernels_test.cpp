// The element-wise kernels on a CPU: against LibTorch's own in float64 and in float32, and where they leave the work to
// LibTorch. And the random numbers of dropout, and the windows of max_pool2d.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/silu_backward.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/kernels.h"
#include "cpu/kernels/bernoulli_kernel.h"
#include "fused_choice.h"

namespace fused_kernels_test {

namespace {

using fused_test::Fused;
using fused_test::plain;
using fused_test::unit_of;

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

// The error of each element in units of the last place of the exact one.
torch::Tensor ulps(const torch::Tensor& computed, const torch::Tensor& exact, torch::ScalarType dtype) {
  const double digits = dtype == torch::kFloat32 ? 23 : dtype == torch::kHalf ? 10 : 7;
  const double least = dtype == torch::kHalf ? 0x1p-14 : 1e-37;  // below, the places stay as they are
  const auto exponent = torch::floor(torch::log2(exact.abs().clamp_min(least)));
  return (computed.to(torch::kFloat64) - exact).abs() / torch::exp2(exponent - digits);
}

bool have_same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto bits = [](const torch::Tensor& x) { return x.contiguous().view(torch::kUInt8); };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(bits(a), bits(b));
}

}  // namespace

TEST_CASE("fused kernels: no result is further from the exact one than LibTorch's by more than 2.5 ulp") {
  if (at::get_cpu_capability() == "DEFAULT") return;  // LibTorch's kernels, which are up to 4 ulp away
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
      CHECK((backward(ones, x).to(torch::kFloat64) - slope).abs().max().item<double>() < 2 * unit_of(dtype));
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

// If the kernel drew other numbers, bernoulli_ would take LibTorch's and say nothing. So here it meets their engine.
TEST_CASE("fused kernels: the generator of many numbers at a time is LibTorch's, wherever it begins") {
  const auto* const kernels = vernier::best_kernels<vernier::RandomKernels<std::uint32_t>>();
  if (kernels == nullptr) return;
  at::mt19937 engine(7);
  auto data = engine.data();
  vernier::Twister twister{data.state_.data(), data.next_, data.left_};
  const auto threshold = std::uint64_t{1} << 52;
  for (const std::int64_t count : {1, 3, 311, 312, 313, 623, 1024, 1025, 5000}) {
    CAPTURE(count);
    std::vector<std::uint32_t> drawn(static_cast<std::size_t>(count)), expected;
    kernels->draw_bernoulli(twister, static_cast<std::int64_t>(threshold), 1U, drawn.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t upper = engine(), lower = engine();
      expected.push_back((upper << 32 | lower) % (std::uint64_t{1} << 53) < threshold ? 1 : 0);
    }
    CHECK(drawn == expected);
  }
}

TEST_CASE("fused kernels: dropout draws LibTorch's numbers, and leaves the generator in the same state") {
  torch::manual_seed(9);
  const auto random = [](std::int64_t end) { return torch::randint(end, {}).item<std::int64_t>(); };
  const torch::ScalarType dtypes[] = {torch::kFloat32, torch::kBFloat16, torch::kHalf, torch::kBool, torch::kFloat64};
  for (int round = 0; round < 100; ++round) {
    const auto dtype = dtypes[random(5)];
    const auto seed = static_cast<std::uint64_t>(random(1000));
    const auto before = random(700), count = random(5000);  // the generator has 624 numbers at a time
    const double p = std::array{
        0.0, 1.0, 0.1, 0x1p-53, 1 - 0x1p-53, torch::rand({}).item<double>()}[static_cast<std::size_t>(random(6))];
    CAPTURE(dtype);
    CAPTURE(count);
    CAPTURE(p);
    const auto draw = [&](bool fused) {
      const Fused choice(fused);
      auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      torch::randint(100, {before}, generator, torch::kInt64);
      auto drawn = torch::full({count}, 7, dtype);
      drawn.bernoulli_(p, generator);
      return std::pair(drawn, generator.get_state());
    };
    const auto [mine, my_state] = draw(true);
    const auto [theirs, their_state] = draw(false);
    CHECK(torch::equal(mine, theirs));
    CHECK(torch::equal(my_state, their_state));
  }
  const auto x = torch::randn({30, 50});
  for (const auto& tensor : {x, x.t(), x.slice(1, 0, 50, 3)}) {  // in another layout it is LibTorch's
    const auto dropped = [&](bool fused) {
      const Fused choice(fused);
      torch::manual_seed(3);
      const auto leaf = tensor.detach().requires_grad_();
      const auto y = at::dropout(leaf, 0.3, /*train=*/true);
      return std::pair(y, torch::autograd::grad({y}, {leaf}, {tensor}).front());
    };
    const auto [mine, my_gradient] = dropped(true);
    const auto [theirs, their_gradient] = dropped(false);
    CHECK(torch::equal(mine, theirs));
    CHECK(torch::equal(my_gradient, their_gradient));
  }
  const Fused on;
  CHECK_THROWS_AS(torch::empty({4}).bernoulli_(1.5), c10::Error);
}

TEST_CASE("fused kernels: index_select has LibTorch's rows, and refuses in its words") {
  const auto x = torch::randn({9, 4, 3});
  const auto numbers = torch::tensor({8, 0, 3, 3}, torch::kInt64);
  struct {
    const char* name;
    torch::Tensor from;
    std::int64_t dim;
    torch::Tensor index;
  } const cases[] = {
      {"rows", x, 0, numbers},
      {"rows of one number", x.select(2, 0).select(1, 0).contiguous(), 0, numbers},
      {"rows without numbers", x.narrow(1, 0, 0), 0, numbers},
      {"no row", x, 0, numbers.narrow(0, 0, 0)},
      {"another dimension", x, 2, torch::tensor({2, 0}, torch::kInt64)},
      {"the last dimensions", x, -3, numbers},
      {"gaps", x.transpose(1, 2), 0, numbers},
      {"an index with gaps", x, 0, torch::arange(8).slice(0, 0, 8, 3)},
      {"an index of int32", x, 0, numbers.to(torch::kInt32)},
      {"an index without a dimension", x, 0, numbers[0]},
      {"one number", x[0][0][0], 0, torch::tensor({0}, torch::kInt64)},
      {"many rows", torch::randn({300, 200}), 0, torch::arange(300).flip(0)},
      {"float16", x.to(torch::kHalf), 0, numbers},
      {"bools", x > 0, 0, numbers},
      {"complex numbers", torch::complex(x, x).conj(), 0, numbers},
      {"a row that is not there", x, 0, torch::tensor({1, 9}, torch::kInt64)},
      {"a row below 0", x, 0, torch::tensor({-1}, torch::kInt64)},
  };
  for (const auto& [name, from, dim, index] : cases) {
    CAPTURE(name);
    std::string error;
    const auto run = [&, &from = from, &index = index, dim = dim] {
      try {
        return from.index_select(dim, index);
      } catch (const c10::Error& refused) {
        error += refused.what_without_backtrace();
        return torch::Tensor();
      }
    };
    const Fused on;
    const auto mine = run();
    const auto my_error = std::exchange(error, "");
    const auto theirs = plain(run);
    CHECK(my_error == error);
    REQUIRE(mine.defined() == theirs.defined());
    if (!mine.defined()) continue;
    CHECK(torch::equal(mine, theirs));
    CHECK(mine.options().dtype() == theirs.options().dtype());
    CHECK(mine.strides() == theirs.strides());
  }
  const auto leaf = x.clone().requires_grad_();
  const Fused on;
  leaf.index_select(0, numbers).sum().backward();
  CHECK(leaf.grad().sum({1, 2}).equal(torch::tensor({12.0F, 0.F, 0.F, 24.0F, 0.F, 0.F, 0.F, 0.F, 12.0F})));
}

TEST_CASE("fused kernels: max_pool2d has LibTorch's numbers, places and gradients, of any window") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  using Pair = std::vector<std::int64_t>;
  struct {
    Pair image, kernel, stride, padding, dilation;
    bool ceil;
  } const cases[] = {
      {{32, 32}, {2, 2}, {}, {0, 0}, {1, 1}, false},     {{15, 17}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, true},
      {{56, 55}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false}, {{9, 200}, {3, 5}, {1, 1}, {1, 2}, {1, 1}, false},
      {{20, 21}, {2, 3}, {3, 4}, {1, 0}, {1, 1}, true},  {{7, 7}, {7, 7}, {1, 1}, {0, 0}, {1, 1}, false},
      {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, false},   {{5, 3}, {3, 3}, {5, 5}, {1, 1}, {1, 1}, true},
      {{12, 12}, {2, 2}, {2, 2}, {0, 0}, {2, 2}, false}, {{6, 6}, {3}, {2}, {1}, {1}, false},
      {{4, 150}, {2, 2}, {2, 2}, {1, 1}, {1, 1}, false}, {{14, 15}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
      {{8, 18}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},  {{6, 26}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false}};
  const Fused on;
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf, torch::kFloat64}) {
    for (const auto& one : cases) {
      CAPTURE(dtype);
      CAPTURE(one.image);
      CAPTURE(one.kernel);
      auto x = (torch::randn({2, 3, one.image[0], one.image[1]}) * 4).round().to(dtype);  // many are equal
      x.flatten().narrow(0, 3, 1).fill_(nan);
      x.select(1, 1).narrow(1, 0, (one.image[0] + 1) / 2).fill_(-inf);
      x.select(1, 2).select(2, 0).fill_(inf);
      for (const auto& image : {x, x[0], x.contiguous(torch::MemoryFormat::ChannelsLast), x.transpose(0, 1)}) {
        const auto run = [&] {
          const auto leaf = image.detach().requires_grad_();
          auto [y, places] =
              at::max_pool2d_with_indices(leaf, one.kernel, one.stride, one.padding, one.dilation, one.ceil);
          auto dy = torch::arange(y.numel()).view(y.sizes()).to(dtype);
          dy.flatten().narrow(0, 0, 1).fill_(nan).neg_();
          dy.flatten().slice(0, 1, {}, 3).fill_(-0.0);
          return std::array{y.detach(), places, torch::autograd::grad({y}, {leaf}, {dy}).front()};
        };
        const auto mine = run();
        const Fused off(false);
        const auto theirs = run();
        CHECK(torch::equal(mine[0].nan_to_num(7.5), theirs[0].nan_to_num(7.5)));
        CHECK(mine[0].strides() == theirs[0].strides());
        CHECK(torch::equal(mine[1], theirs[1]));
        CHECK(have_same_bits(mine[2], theirs[2]));
      }
    }
  }
  const auto image = torch::randn({2, 18, 18}), dy = torch::randn({2, 9, 9});
  const auto places = torch::randint(18 * 18, {2, 9, 9}, torch::kInt64);  // most are not in their windows
  const auto backward = [&](const torch::Tensor& at_places) {
    return at::max_pool2d_with_indices_backward(dy, image, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, at_places);
  };
  for (const auto& each : {places, places.transpose(1, 2), places.transpose(1, 2).contiguous()}) {
    CHECK(have_same_bits(backward(each), plain([&] { return backward(each); })));
  }
  const auto x = torch::ones({1, 1, 4, 4});
  CHECK_THROWS_AS(at::max_pool2d_with_indices(x, {2, 2}, {2, 2}, {2, 2}), c10::Error);
  CHECK_THROWS_AS(at::max_pool2d_with_indices(x, {5, 5}), c10::Error);
}

}  // namespace fused_kernels_test
