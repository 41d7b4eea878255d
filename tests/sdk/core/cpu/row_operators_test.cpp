// The kernels over rows on a CPU: against LibTorch's own in float64, and where they leave the work to LibTorch.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/softmax.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "fused_choice.h"
#include "long_form.h"

namespace row_operators_test {

namespace {

using fused_test::Fused;
using fused_test::plain;
using fused_test::unit_of;
using Tensors = std::vector<torch::Tensor>;

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
          {"rms norm", [](const auto& x, const auto& w, const auto&) { return at::rms_norm(x, w.sizes(), w, 1e-5); }},
          {"rms norm without weight, epsilon by default",
           [](const auto& x, const auto& w, const auto&) { return at::rms_norm(x, w.sizes()); }},
          {"softmax", [](const auto& x, const auto&, const auto&) { return at::softmax(x, -1); }},
          {"log softmax", [](const auto& x, const auto&, const auto&) { return at::log_softmax(x, -1); }}};
}

struct RowCase {
  torch::Tensor x, weight, bias, above;
  RowCase in(torch::ScalarType dtype) const { return {x.to(dtype), weight.to(dtype), bias.to(dtype), above.to(dtype)}; }
  // The output, and the gradients of x, weight and bias; undefined where an operator has none.
  Tensors run(const RowOperator& op, bool fused) const { return run(op, fused, fused); }
  Tensors run(const RowOperator& op, bool fused_forward, bool fused_backward) const {
    Tensors leaves;
    for (const auto& given : {x, weight, bias}) leaves.push_back(given.detach().requires_grad_());
    Tensors results;
    {
      const Fused choice(fused_forward);
      results = {op.forward(leaves[0], leaves[1], leaves[2])};
    }
    const Fused choice(fused_backward);
    for (auto& gradient : torch::autograd::grad(results, leaves, {above}, {}, false, /*allow_unused=*/true)) {
      results.push_back(std::move(gradient));
    }
    results.front() = results.front().detach();
    return results;
  }
};

RowCase rows(std::int64_t count, std::int64_t columns) {
  return {3 * torch::randn({2, count, columns}) + 1, torch::randn({columns}), torch::randn({columns}),
          torch::randn({2, count, columns})};
}

double error_of(const torch::Tensor& computed, const torch::Tensor& exact) {
  return (computed.to(torch::kFloat64) - exact).abs().max().item<double>();
}

// None of the first results is further from that of float64 than LibTorch's by more than a unit of the largest element.
void check_errors(const RowCase& given, const RowOperator& op, std::size_t results = 4) {
  const auto mine = given.run(op, true), theirs = given.run(op, false);
  const auto exact = given.in(torch::kFloat64).run(op, false);
  for (std::size_t i = 0; i < results; ++i) {
    CAPTURE(i);
    REQUIRE(mine[i].defined() == theirs[i].defined());
    if (!exact[i].defined()) continue;
    CHECK((mine[i].scalar_type() == theirs[i].scalar_type()));
    CHECK(mine[i].sizes() == theirs[i].sizes());
    // Gradients are sums, of terms that may be larger than they are: of x over columns, of a weight over rows.
    const double terms = i == 0   ? 0
                         : i == 1 ? 0.01
                                  : std::sqrt(static_cast<double>(given.x.numel() / given.x.size(-1)));
    const double unit = std::max(exact[i].abs().max().item<double>(), terms) * unit_of(mine[i].scalar_type());
    const double factor = i == 0 ? 1 : i == 1 ? 1.5 : 2;
    CHECK(error_of(mine[i], exact[i]) <= factor * error_of(theirs[i], exact[i]) + unit);
  }
}

}  // namespace

TEST_CASE("row operators: errors over rows are not larger than LibTorch's, for rows of any length") {
  torch::manual_seed(2);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const std::int64_t columns : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1000, 5003}) {
      const auto given = rows(9, columns).in(dtype);
      for (const auto& op : row_operators()) {
        CAPTURE(columns);
        CAPTURE(dtype);
        CAPTURE(op.name);
        check_errors(given, op);
        if (dtype == torch::kFloat32) {
          auto far = given;  // from 0, where the mean is less exact
          far.x = given.x.clone();
          far.x[1][8] += 1000;
          check_errors(far, op, /*results=*/2);
        }
        if (dtype == torch::kFloat32 || op.name.find("norm") == std::string::npos) continue;
        auto mixed = given;  // autocast mixes dtypes like this
        mixed.weight = given.weight.to(torch::kFloat32);
        mixed.bias = given.bias.to(torch::kFloat32);
        check_errors(mixed, op);
      }
    }
  }
}

TEST_CASE("row operators: errors over rows of random shapes") {
  torch::manual_seed(5);
  const auto random = [](std::int64_t end) { return torch::randint(end, {}).item<std::int64_t>(); };
  const auto operators = row_operators();
  for (int round = 0; round < 60; ++round) {
    const auto dtype = std::array{torch::kFloat32, torch::kBFloat16, torch::kHalf}[static_cast<std::size_t>(random(3))];
    auto given = rows(1 + random(300), 1 + random(400));
    given.x *= std::exp2(static_cast<double>(random(9) - 4));
    for (const auto& op : operators) {
      CAPTURE(round);
      CAPTURE(op.name);
      CAPTURE(given.x.sizes());
      CAPTURE(dtype);
      check_errors(given.in(dtype), op);
    }
  }
}

TEST_CASE("row operators: rows have the same bits on any number of threads") {
  torch::manual_seed(3);
  const int threads = at::get_num_threads();
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const auto given = rows(700, 100).in(dtype);
    for (const auto& op : row_operators()) {
      if (op.name == "softmax") continue;  // its backward is LibTorch's
      CAPTURE(op.name);
      at::set_num_threads(1);
      const auto alone = given.run(op, true);
      for (const int several : {2, 3, 4}) {
        at::set_num_threads(several);
        const auto together = given.run(op, true);
        for (std::size_t i = 0; i < alone.size(); ++i) {
          CHECK((!alone[i].defined() || torch::equal(alone[i], together[i])));
        }
      }
      at::set_num_threads(threads);
    }
  }
}

TEST_CASE("row operators: infinity, NaN and large numbers in rows") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto plain_rows = rows(3, 40);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const auto& op : row_operators()) {
      CAPTURE(op.name);
      CAPTURE(dtype);
      auto given = plain_rows.in(torch::kFloat64).in(torch::kFloat32);  // a copy
      given.x[1][0][7] = nan;
      if (op.name.find("rms") != std::string::npos) {
        given.x[0][1][39] = inf;
        given.x[0][2] *= dtype == torch::kFloat32 ? 1e15 : 1e3;
        given.x[1][1] = 0;
        given.x[1][2] *= 1e-3;
      }
      if (op.name.find("softmax") != std::string::npos) {
        given.x[0][0].narrow(0, 5, 30).fill_(-inf);
        given.x[0][1].fill_(-inf);
        given.x[0][2][7] = inf;
        given.x[1][1] *= 1e30;
        given.x[1][2] -= 1e5;
      }
      given = given.in(dtype);
      const auto mine = given.run(op, true), theirs = given.run(op, false);
      for (std::size_t i = 0; i < 2; ++i) {
        CAPTURE(i);
        const double unit = unit_of(dtype);
        CHECK(torch::equal(mine[i].isnan(), theirs[i].isnan()));
        CHECK(torch::allclose(mine[i].to(torch::kFloat64), theirs[i].to(torch::kFloat64), 1e-3 + 2 * unit,
                              1e-5 + 2 * unit, /*equal_nan=*/true));
      }
    }
  }
}

TEST_CASE("row operators: rows whose squares are beyond float32's range are exact, where LibTorch gives bias or 0") {
  if (at::get_cpu_capability() == "DEFAULT") return;  // LibTorch's kernels
  torch::manual_seed(16);
  for (const auto& [size, columns] : {std::pair{2e17, 4095}, {1e18, 500}, {1e20, 40}, {1e30, 7}, {1e37, 3000}}) {
    CAPTURE(size);
    auto given = rows(2, columns);
    given.x = given.x * size;
    for (const auto& op : row_operators()) {
      if (op.name.find("norm") == std::string::npos) continue;
      CAPTURE(op.name);
      const auto mine = given.run(op, true), exact = given.in(torch::kFloat64).run(op, false);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        CAPTURE(i);
        if (!mine[i].defined() || exact[i].abs().max().item<double>() < 1e-36) continue;
        CHECK(error_of(mine[i], exact[i]) < 1e-4 * exact[i].abs().max().item<double>());
      }
    }
  }
}

// One number that is much larger than all others takes their digits in a sum that goes on for long.
TEST_CASE("row operators: sums over long rows are as exact as LibTorch's") {
  torch::manual_seed(17);
  for (const std::int64_t columns : {100, 1000, 4096, 65'536, 1'000'001, 3'000'001}) {
    if (columns > 2'000'000 && !is_long()) continue;
    const auto normal = torch::randn({1, 1, columns});
    auto outlier = normal.clone(), first = normal.clone();
    outlier[0][0][columns / 3] = 8192;
    first[0][0][0] = 8192;
    const auto heavy = normal / torch::randn({1, 1, columns}).abs().clamp_min(1e-4);
    for (const auto& x : {normal, outlier, first, heavy, normal + 1000}) {
      const RowCase given = {x, torch::ones({columns}), torch::zeros({columns}), torch::randn({1, 1, columns})};
      for (const auto& op : row_operators()) {
        if (op.name != "layer norm" && op.name != "rms norm") continue;
        CAPTURE(columns);
        CAPTURE(op.name);
        const auto exact = given.in(torch::kFloat64).run(op, false);
        const auto mine = given.run(op, true), theirs = given.run(op, false);
        for (std::size_t i = 0; i < 2; ++i) {  // the output, and the gradient of x
          CAPTURE(i);
          const double unit = 0x1p-21 * exact[i].abs().max().item<double>();
          CHECK(error_of(mine[i], exact[i]) <= std::max(1.5 * error_of(theirs[i], exact[i]), unit));
        }
      }
    }
  }
}

TEST_CASE("row operators: a bias in another dtype is refused as by LibTorch") {
  const auto x = torch::randn({3, 40}).to(torch::kBFloat16).requires_grad_(),
             bias = torch::zeros({40}).requires_grad_();
  for (const bool fused : {true, false}) {
    const Fused choice(fused);
    CHECK_THROWS(at::layer_norm(x, {40}, {}, bias).sum().backward());
  }
}

TEST_CASE("row operators: what one of both computes forward, the other takes backward") {
  torch::manual_seed(6);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    const auto given = rows(20, 50).in(dtype);
    for (const auto& op : row_operators()) {
      CAPTURE(op.name);
      CAPTURE(dtype);
      const auto expected = given.in(torch::kFloat64).run(op, false);
      for (const bool forward : {false, true}) {
        const auto results = given.run(op, forward, !forward);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (!expected[i].defined()) continue;
          const double size = expected[i].abs().max().item<double>();
          CHECK(error_of(results[i], expected[i]) <= 8 * unit_of(dtype) * size);
        }
      }
    }
  }
}

TEST_CASE("row operators: RMSNorm has derivatives of any order, and of its second output") {
  torch::manual_seed(7);
  const auto given = rows(4, 10);
  const auto second = [&](torch::ScalarType dtype, bool fused) {
    const Fused choice(fused);
    const auto x = given.x.to(dtype).requires_grad_(), weight = given.weight.to(dtype).requires_grad_();
    const auto dy = given.above.to(dtype).requires_grad_();
    const auto y = at::rms_norm(x, {10}, weight, 1e-5);
    auto first = torch::autograd::grad({y}, {x, weight}, {dy}, /*retain_graph=*/true, /*create_graph=*/true);
    const auto squares = first[0].square().sum() + first[1].square().sum();
    for (auto& gradient : torch::autograd::grad({squares}, {x, weight, dy})) first.push_back(gradient);
    return first;
  };
  const auto mine = second(torch::kFloat32, true), exact = second(torch::kFloat64, false);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(torch::allclose(mine[i].to(torch::kFloat64), exact[i], 1e-4, 1e-4));
  }

  // A weight that two norms share: the second one's input depends on it.
  const auto of_shared = [&](bool fused, bool again) {
    const Fused choice(fused);
    const auto x = given.x.detach().requires_grad_(), weight = given.weight.detach().requires_grad_();
    const auto y = at::rms_norm(at::rms_norm(x, {10}, weight, 1e-5), {10}, weight, 1e-5);
    return torch::autograd::grad({y.sin().sum()}, {x, weight}, {}, again, again);
  };
  for (const bool again : {false, true}) {
    const auto ours = of_shared(true, again), right = of_shared(false, again);
    for (std::size_t i = 0; i < 2; ++i) CHECK(torch::allclose(ours[i], right[i], 1e-4, 1e-4));
  }

  const auto of_inverse = [&](bool fused) {
    const Fused choice(fused);
    const auto x = given.x.detach().requires_grad_();
    const auto [y, inverse] = at::_fused_rms_norm(x, {10}, {}, 1e-5);
    return torch::autograd::grad({y.square().sum() + inverse.sum()}, {x}).front();
  };
  CHECK(torch::allclose(of_inverse(true), of_inverse(false), 1e-4, 1e-5));
}

TEST_CASE("row operators: RMSNorm without gradients, of some inputs, and of one layout after another") {
  torch::manual_seed(8);
  const auto given = rows(6, 30);
  const Fused on;
  const auto y = at::rms_norm(given.x, {30}, given.weight, 1e-5);
  CHECK(!y.requires_grad());
  {
    const c10::InferenceMode inference;
    CHECK(torch::equal(at::rms_norm(given.x.clone(), {30}, given.weight, 1e-5), y));
  }
  const auto weight = given.weight.detach().requires_grad_();
  const auto only_weights = at::rms_norm(given.x, {30}, weight, 1e-5);
  CHECK(torch::equal(only_weights, y));
  CHECK(torch::autograd::grad({only_weights.sum()}, {weight}).front().sizes() == weight.sizes());  // an expanded slope
  const auto turned = given.x.transpose(0, 1);                                                     // LibTorch's
  CHECK(torch::equal(at::rms_norm(turned, {30}, weight), plain([&] { return at::rms_norm(turned, {30}, weight); })));
  const auto whole = at::rms_norm(given.x, {6, 30});  // more than one dimension
  CHECK(torch::allclose(whole, plain([&] { return at::rms_norm(given.x, {6, 30}); }), 1e-5, 1e-6));
  CHECK_THROWS_AS(at::rms_norm(given.x, {7}), c10::Error);
}

TEST_CASE("row operators: rows in another layout, another dimension or dtype are LibTorch's, and none at all") {
  torch::manual_seed(4);
  const auto x = torch::randn({6, 40, 5});
  const std::pair<const char*, std::function<torch::Tensor()>> calls[] = {
      {"dimension", [&] { return at::log_softmax(x, 1); }},
      {"layout", [&] { return at::softmax(x.transpose(0, 2), -1); }},
      {"dtype", [&] { return at::log_softmax(x.to(torch::kFloat64), -1); }},
      {"layer norm's dtype", [&] { return at::layer_norm(x.to(torch::kFloat64), {5}); }},
      {"rms norm's dtype", [&] { return at::rms_norm(x.to(torch::kFloat64), {5}); }},
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

namespace {

// A way to call cross entropy.
struct Way {
  const char* name;
  std::int64_t reduction = at::Reduction::Mean, ignored = -100;
  double smoothing = 0;
  bool has_weight = false;
};

// The loss, and the gradient of the logits.
Tensors cross_entropy(const torch::Tensor& x, const torch::Tensor& target, const Way& way, bool fused) {
  const Fused choice(fused);
  const auto leaf = x.detach().requires_grad_();
  const auto weight = way.has_weight ? std::optional(torch::linspace(1, 2, x.size(1)).to(x.dtype())) : std::nullopt;
  const auto loss = at::cross_entropy_loss(leaf, target, weight, way.reduction, way.ignored, way.smoothing);
  return Tensors{loss.detach(), torch::autograd::grad({loss.sum() * 3}, {leaf}).front()};
}

}  // namespace

TEST_CASE("row operators: cross entropy from logits and its gradients are as exact as LibTorch's") {
  torch::manual_seed(10);
  const Way ways[] = {{"mean"},
                      {"sum", at::Reduction::Sum},
                      {"a class is ignored", at::Reduction::Mean, 0},
                      {"for each row", at::Reduction::None},
                      {"smoothed", at::Reduction::Mean, -100, 0.1},
                      {"weighted", at::Reduction::Mean, -100, 0, true}};
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const std::int64_t columns : {1, 2, 9, 16, 33, 100, 2000}) {
      const auto x = (4 * torch::randn({40, columns})).to(dtype);
      auto target = torch::randint(columns, {40}, torch::kInt64);
      target[3] = -100;
      for (const auto& way : ways) {
        CAPTURE(dtype);
        CAPTURE(columns);
        CAPTURE(way.name);
        if (way.ignored != -100) target[3] = 0;
        const auto mine = cross_entropy(x, target, way, true), theirs = cross_entropy(x, target, way, false);
        const auto exact = cross_entropy(x.to(torch::kFloat64), target, way, false);
        for (std::size_t i = 0; i < exact.size(); ++i) {
          CAPTURE(i);
          CHECK((mine[i].scalar_type() == dtype));
          CHECK(torch::equal(mine[i].isnan(), theirs[i].isnan()));
          const auto known = exact[i].nan_to_num();
          const double unit = std::max(known.abs().max().item<double>(), 1e-6) * unit_of(dtype);
          CHECK(error_of(mine[i].nan_to_num(), known) <= error_of(theirs[i].nan_to_num(), known) + unit);
        }
      }
    }
  }
}

TEST_CASE("row operators: cross entropy of logits that are not finite is LibTorch's") {
  torch::manual_seed(10);
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  auto x = torch::randn({5, 20});
  x[0][3] = nan;
  x[1][3] = inf;
  x[2][3] = -inf;
  x[3] *= 1e30;
  for (const std::int64_t all : {0, 3}) {
    const auto target = torch::full({5}, all, torch::kInt64);
    const auto mine = cross_entropy(x, target, {"each", at::Reduction::Sum}, true);
    const auto theirs = cross_entropy(x, target, {"each", at::Reduction::Sum}, false);
    CHECK(torch::allclose(mine[1], theirs[1], 1e-4, 1e-6, /*equal_nan=*/true));
    for (std::int64_t row = 0; row < 5; ++row) {
      const auto one = [&](bool fused) {
        return cross_entropy(x.narrow(0, row, 1), target.narrow(0, row, 1), {"one"}, fused)[0];
      };
      CHECK(torch::allclose(one(true), one(false), 1e-5, 1e-6, /*equal_nan=*/true));
    }
  }
}

TEST_CASE("row operators: cross entropy has a second derivative") {
  const auto second = [&](torch::ScalarType dtype, bool fused) {
    const Fused choice(fused);
    torch::manual_seed(11);
    const auto leaf = torch::randn({6, 9}).to(dtype).requires_grad_();
    const auto target = torch::tensor({0, 8, -100, 3, 3, 1});
    auto first = torch::autograd::grad({at::cross_entropy_loss(leaf, target)}, {leaf}, {}, true, /*create_graph=*/true);
    first.push_back(torch::autograd::grad({first[0].square().sum()}, {leaf}).front());
    return first;
  };
  const auto mine = second(torch::kFloat32, true), exact = second(torch::kFloat64, false);
  for (std::size_t i = 0; i < 2; ++i) CHECK(torch::allclose(mine[i].to(torch::kFloat64), exact[i], 1e-5, 1e-7));
}

TEST_CASE("row operators: cross entropy has the same bits on any number of threads") {
  torch::manual_seed(10);
  const auto many = torch::randn({900, 60}), some = torch::randint(60, {900}, torch::kInt64);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = cross_entropy(many, some, {"mean"}, true);
  at::set_num_threads(4);
  const auto together = cross_entropy(many, some, {"mean"}, true);
  at::set_num_threads(threads);
  CHECK(torch::equal(alone[0], together[0]));
  CHECK(torch::equal(alone[1], together[1]));
}

TEST_CASE("row operators: logits may change between cross entropy and backward, and classes out of range are refused") {
  const Fused on;
  const auto many = torch::randn({900, 60}), some = torch::randint(60, {900}, torch::kInt64);
  auto logits = many.detach().requires_grad_() * 1;
  const auto loss = at::cross_entropy_loss(logits, some);
  logits.mul_(2);  // they may change before backward, as with LibTorch's
  CHECK_NOTHROW(loss.backward());
  CHECK_THROWS_AS(at::cross_entropy_loss(many, some + 60), c10::Error);
}

}  // namespace row_operators_test
