// Products, convolutions and LSTM layers in 16 bits that are computed in float32. Their oracle is LibTorch in float64,
// their measure LibTorch in the same dtype.
#include <ATen/Parallel.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <vernier/autocast.h>
#include <vernier/matmul.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fused_choice.h"

namespace half_products_test {

namespace {

using fused_test::Fused;
using Tensors = std::vector<torch::Tensor>;

struct Case {
  std::string name;
  Tensors inputs;  // in float64
  std::function<torch::Tensor(const Tensors&)> call;
};

std::vector<torch::ScalarType> dtypes() {
  std::vector<torch::ScalarType> all;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    if (vernier::multiplies_in_float32(dtype)) all.push_back(dtype);
  }
  return all;
}

Tensors random(const std::vector<std::vector<std::int64_t>>& shapes) {
  Tensors all;
  for (const auto& shape : shapes) all.push_back(torch::randn(shape, torch::kFloat64));
  return all;
}

std::vector<Case> products() {
  const auto mm = [](const Tensors& x) { return at::mm(x[0], x[1]); };
  const auto turned = [](const Tensors& x) { return at::mm(x[0].t(), x[1].t()); };
  const auto bmm = [](const Tensors& x) { return at::bmm(x[0], x[1]); };
  return {
      {"mm", random({{130, 70}, {70, 90}}), mm},
      {"mm of one number", random({{1, 1}, {1, 1}}), mm},
      {"mm of one row", random({{1, 300}, {300, 200}}), mm},
      {"mm to one column", random({{300, 200}, {200, 1}}), mm},
      {"mm with several tiles and a long sum", random({{530, 1100}, {1100, 520}}), mm},
      {"mm of transposed factors", random({{70, 130}, {90, 70}}), turned},
      {"mm with gaps", random({{64, 80}, {80, 64}}),
       [](const Tensors& x) { return at::mm(x[0].slice(1, 0, 80, 2), x[1].slice(0, 0, 80, 2).slice(1, 0, 64, 3)); }},
      {"mm of one number, expanded", random({{1, 1}, {70, 30}}),
       [](const Tensors& x) {
         return at::mm(x[0].expand({40, 70}), x[1]);
       }},
      {"linear with a bias", random({{8, 16, 120}, {48, 120}, {48}}),
       [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); }},
      {"linear without a bias", random({{8, 16, 120}, {48, 120}}),
       [](const Tensors& x) { return at::linear(x[0], x[1]); }},
      {"addmm, scaled", random({{50, 40}, {50, 60}, {60, 40}}),
       [](const Tensors& x) { return at::addmm(x[0], x[1], x[2], 0.5, -2); }},
      {"addmm of a column", random({{50, 1}, {50, 60}, {60, 40}}),
       [](const Tensors& x) { return at::addmm(x[0], x[1], x[2]); }},
      {"bmm", random({{7, 65, 33}, {7, 33, 47}}), bmm},
      {"bmm of transposed factors", random({{3, 40, 65, 4}, {3, 4, 40, 47}}),
       [](const Tensors& x) { return at::matmul(x[0].transpose(1, 3).flatten(0, 1), x[1].flatten(0, 1)); }},
      {"baddbmm", random({{7, 1, 47}, {7, 65, 33}, {7, 33, 47}}),
       [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2], 0.25, 3); }},
      {"mv", random({{60, 500}, {500}}), [](const Tensors& x) { return at::mv(x[0], x[1]); }},
      {"mv of a transposed matrix", random({{500, 60}, {500}}),
       [](const Tensors& x) { return at::mv(x[0].t(), x[1]); }},
      {"addmv", random({{60}, {60, 500}, {500}}), [](const Tensors& x) { return at::addmv(x[0], x[1], x[2], 2, 0.5); }},
  };
}

std::vector<Case> convolutions() {
  using Sizes = std::vector<std::int64_t>;
  const auto conv2d = [](Sizes stride, Sizes padding, Sizes dilation, std::int64_t groups) {
    return [=](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], stride, padding, dilation, groups); };
  };
  return {
      {"conv1d", random({{4, 6, 50}, {8, 6, 3}, {8}}), [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2]); }},
      {"conv2d", random({{6, 8, 12, 10}, {16, 8, 3, 3}, {16}}), conv2d({1, 1}, {1, 1}, {1, 1}, 1)},
      {"conv2d of one image", random({{1, 8, 12, 10}, {16, 8, 3, 3}, {16}}), conv2d({2, 1}, {0, 1}, {1, 1}, 1)},
      {"conv2d, dilated", random({{5, 8, 12, 10}, {16, 8, 3, 3}, {16}}), conv2d({1, 1}, {2, 2}, {2, 2}, 1)},
      {"conv2d, a channel each", random({{5, 8, 12, 10}, {8, 1, 3, 3}, {8}}), conv2d({1, 1}, {1, 1}, {1, 1}, 8)},
      {"conv2d without a bias", random({{5, 8, 12, 10}, {16, 8, 1, 1}}),
       [](const Tensors& x) { return at::conv2d(x[0], x[1]); }},
      {"conv2d, channels last", random({{5, 8, 12, 10}, {16, 8, 3, 3}}),
       [](const Tensors& x) { return at::conv2d(x[0].contiguous(torch::MemoryFormat::ChannelsLast), x[1]); }},
      {"conv3d", random({{2, 3, 6, 7, 8}, {4, 3, 3, 3, 3}, {4}}),
       [](const Tensors& x) { return at::conv3d(x[0], x[1], x[2]); }},
      {"conv_transpose2d", random({{3, 8, 6, 5}, {8, 4, 3, 3}, {4}}),
       [](const Tensors& x) { return at::conv_transpose2d(x[0], x[1], x[2], 2, 1, 1); }},
  };
}

// The output, and the gradient of each input.
Tensors run(const Case& one, torch::ScalarType dtype, torch::ScalarType rounded_to, bool fused) {
  const Fused choice(fused);
  Tensors leaves;
  for (const auto& x : one.inputs) leaves.push_back(x.to(rounded_to).to(dtype).requires_grad_());
  const auto y = one.call(leaves);
  torch::manual_seed(2);
  auto all = torch::autograd::grad({y}, leaves, {torch::randn(y.sizes(), torch::kFloat64).to(rounded_to).to(dtype)});
  all.insert(all.begin(), y.detach());
  return all;
}

double error_of(const torch::Tensor& computed, const torch::Tensor& exact) {
  return (computed.to(torch::kFloat64) - exact).square().mean().sqrt().item<double>();
}

// Each result lies within `ulps` of the exact one, beside what sums in float32 lose.
void check_bounds(const torch::Tensor& computed, const torch::Tensor& exact, torch::ScalarType dtype, double ulps) {
  const auto room = exact.abs() * fused_test::unit_of(dtype) * ulps + exact.abs().max() * 0x1p-18;
  CHECK(((computed.to(torch::kFloat64) - exact).abs() <= room).all().item<bool>());
}

void check_all(const std::vector<Case>& cases) {
  const Fused on;
  for (const auto dtype : dtypes()) {
    CAPTURE(dtype);
    for (const auto& one : cases) {
      CAPTURE(one.name);
      const auto exact = run(one, torch::kFloat64, dtype, false), mine = run(one, dtype, dtype, true);
      const auto theirs = run(one, dtype, dtype, false);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        CHECK(mine[i].options().type_equal(theirs[i].options()));
        CHECK(mine[i].sizes() == theirs[i].sizes());
        const double size = exact[i].square().mean().sqrt().item<double>();
        CHECK(error_of(mine[i], exact[i]) <= 1.02 * error_of(theirs[i], exact[i]) + 0x1p-20 * size);
        check_bounds(mine[i], exact[i], dtype, i == 0 ? 0.5 : 1);  // LibTorch scales the gradients of some afterwards
      }
    }
  }
}

void check_threads(const std::vector<Case>& cases) {
  const Fused on;
  const int threads = at::get_num_threads();
  for (const auto dtype : dtypes()) {
    CAPTURE(dtype);
    for (const auto& one : cases) {
      CAPTURE(one.name);
      Tensors alone;
      for (const int now : {1, 2, 5}) {
        at::set_num_threads(now);
        const auto all = run(one, dtype, dtype, true);
        if (alone.empty()) alone = all;
        for (std::size_t i = 0; i < all.size(); ++i) CHECK(torch::equal(all[i], alone[i]));
      }
      at::set_num_threads(threads);
    }
  }
}

// The output of two layers of an LSTM, which run in both directions, and the gradients of its parameters.
Tensors run_lstm(torch::ScalarType dtype, torch::ScalarType rounded_to, bool autocast) {
  torch::manual_seed(4);
  auto lstm = torch::nn::LSTM(torch::nn::LSTMOptions(12, 20).num_layers(2).bidirectional(true).batch_first(true));
  const auto x = torch::randn({6, 9, 12}).to(rounded_to).to(dtype);
  lstm->to(rounded_to);
  lstm->to(dtype);
  torch::Tensor y;
  {
    const vernier::Autocast lower(at::kCPU, rounded_to, autocast);
    y = std::get<0>(lstm->forward(x));
  }
  auto all = torch::autograd::grad({y.to(torch::kFloat32).square().sum()}, lstm->parameters());
  all.insert(all.begin(), y.detach());
  return all;
}

}  // namespace

TEST_CASE("half products: no further from the exact result than LibTorch's, and within half an ulp and its sums") {
  check_all(products());
}

TEST_CASE("half products: convolutions, forward and backward") {
  check_all(convolutions());
}

TEST_CASE("half products: filters in bfloat16 that reach beyond both ends of the depth have the gradients of float32") {
  const Fused fused;
  for (const std::int64_t depth : {1, 2, 3, 4}) {
    for (const std::int64_t size : {3, 5}) {
      CAPTURE(depth);
      CAPTURE(size);
      const auto x = torch::randn({2, 8, depth, 5, 6}).to(torch::kBFloat16);
      const auto weight = torch::randn({16, 8, size, size, size}).to(torch::kBFloat16);
      const auto gradients = [&, pad = size / 2](torch::ScalarType dtype) {
        const auto input = x.to(dtype).requires_grad_(), filter = weight.to(dtype).requires_grad_();
        const auto y = at::conv3d(input, filter, {}, 1, pad);
        return torch::autograd::grad({y}, {input, filter}, {torch::ones_like(y)});
      };
      const auto lowered = gradients(torch::kBFloat16), exact = gradients(torch::kFloat32);
      for (const std::size_t i : {0, 1}) {
        const auto apart = (lowered[i].to(torch::kFloat32) - exact[i]).abs().max() / exact[i].abs().max();
        CHECK(apart.item<double>() < 0.02);
      }
    }
  }
}

TEST_CASE("half products: the same bits on any number of threads") {
  check_threads(products());
  check_threads(convolutions());
  check_threads(
      {{"large sum", random({{10, 4096}, {4096, 30}}), [](const Tensors& x) { return at::mm(x[0], x[1]); }},
       {"long", random({{2048, 130}, {2048, 100}}), [](const Tensors& x) { return at::mm(x[0].t(), x[1]); }}});
}

TEST_CASE("half products: overflow is infinity, and NaN stays in its row") {
  const Fused on;
  for (const auto dtype : dtypes()) {
    auto x = torch::ones({4, 40}).to(dtype), weight = torch::full({40, 3}, 2).to(dtype);
    x.select(0, 1).fill_(dtype == torch::kHalf ? 60000 : 3e38F);
    x[2][5] = std::numeric_limits<float>::quiet_NaN();
    const auto y = at::mm(x, weight);
    CHECK(y[0].eq(80).all().item<bool>());
    CHECK(y[1].isinf().all().item<bool>());
    CHECK(y[2].isnan().all().item<bool>());
    CHECK(y[3].eq(80).all().item<bool>());
    // beta = 0 leaves out what is added, NaN or not.
    CHECK(at::addmm(x.select(1, 5).unsqueeze(1), x, weight, /*beta=*/0)[3].eq(80).all().item<bool>());
  }
}

TEST_CASE("half products: what does not fit is refused in LibTorch's words, and other dtypes are LibTorch's") {
  const Fused on;
  const auto x = torch::ones({4, 5}).to(torch::kHalf);
  CHECK_THROWS_WITH_AS(at::mm(x, x), doctest::Contains("cannot be multiplied"), c10::Error);
  CHECK_THROWS_AS(at::mm(x, torch::ones({5, 3})), c10::Error);
  CHECK_THROWS_AS(at::addmm(torch::ones({7}).to(torch::kHalf), x, x.t()), c10::Error);
  CHECK(at::mm(x.narrow(0, 0, 0), x.t()).sizes() == at::IntArrayRef({0, 4}));
  CHECK(at::mm(x.narrow(1, 0, 0), x.narrow(1, 0, 0).t()).eq(0).all().item<bool>());
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    const auto a = torch::randn({40, 50}).to(dtype), b = torch::randn({50, 30}).to(dtype);
    CHECK(torch::equal(at::mm(a, b), fused_test::plain([&] { return at::mm(a, b); })));
  }
}

TEST_CASE("half products: an LSTM in float16 trains, with autocast or weights in float16") {
  const Fused on;
  const auto exact = run_lstm(torch::kFloat64, torch::kHalf, false);
  for (const bool autocast : {true, false}) {
    CAPTURE(autocast);
    const auto mine = run_lstm(autocast ? torch::kFloat32 : torch::kHalf, torch::kHalf, autocast);
    CHECK((mine[0].scalar_type() == torch::kHalf));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      CHECK(error_of(mine[i], exact[i]) < 2e-3 * exact[i].square().mean().sqrt().item<double>());
    }
  }
}

TEST_CASE("half products: autocast lowers the convolutions of traced models as it does conv2d") {
  const auto x = torch::randn({2, 3, 8, 8}), weight = torch::randn({4, 3, 3, 3});
  const auto traced = [&] {
    return at::_convolution(x, weight, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, false, false, false, false);
  };
  const Fused on;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const vernier::Autocast lower(at::kCPU, dtype);
    CHECK((traced().scalar_type() == dtype));
    CHECK(torch::equal(traced(), at::conv2d(x, weight)));
    CHECK((fused_test::plain(traced).scalar_type() == torch::kFloat32));
  }
  CHECK((traced().scalar_type() == torch::kFloat32));
}

}  // namespace half_products_test
