// vernier/linear_cross_entropy.h: chunk by chunk against LibTorch's operators over all logits, in float64 and in the
// dtypes that training has.
#include <ATen/core/Reduction.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/autocast.h>
#include <vernier/layers.h>
#include <vernier/linear_cross_entropy.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fused_choice.h"

namespace linear_cross_entropy_test {

namespace {

using fused_test::unit_of;
using Tensors = std::vector<torch::Tensor>;
using Options = vernier::LinearCrossEntropyOptions;

// The operands of a head, and how its loss is asked for.
struct Head {
  torch::Tensor input, weight, bias, target;
  Options options = {};

  Head(std::int64_t rows, std::int64_t classes, std::int64_t width = 6)
      : input(torch::randn({rows, width})),
        weight(torch::randn({classes, width})),
        bias(torch::randn({classes})),
        target(torch::randint(classes, {rows}, torch::kInt64)) {
    options.chunk_rows = 3;
  }

  Head in(torch::ScalarType dtype) const {
    auto other = *this;
    for (auto* tensor : {&other.input, &other.weight, &other.bias}) *tensor = tensor->to(dtype);
    return other;
  }

  // The loss, and the gradients of input, weight and bias of the loss times 3.
  template <class Loss>
  Tensors run(bool has_bias, const Loss& loss) const {
    Tensors leaves;
    for (const auto& x : {input, weight, bias}) leaves.push_back(x.detach().requires_grad_());
    if (!has_bias) leaves.pop_back();
    Tensors results = {loss(leaves[0], leaves[1], has_bias ? leaves[2] : torch::Tensor())};
    for (auto& x : torch::autograd::grad({results[0] * 3}, leaves)) results.push_back(std::move(x));
    results.front() = results.front().detach();
    return results;
  }

  Tensors in_chunks(bool has_bias) const {
    return run(has_bias, [&](const auto& x, const auto& w, const auto& b) {
      auto given = options;
      given.bias = b;
      return vernier::linear_cross_entropy(x, w, target, given);
    });
  }

  // By LibTorch's operators.
  Tensors whole(bool has_bias) const {
    return run(has_bias, [&](const auto& x, const auto& w, const auto& b) {
      auto logits = at::linear(x, w, b.defined() ? std::optional(b) : std::nullopt);
      logits = logits.to(c10::promoteTypes(logits.scalar_type(), torch::kFloat32));
      const auto of_classes =
          options.class_weight.defined() ? std::optional(options.class_weight.to(logits.scalar_type())) : std::nullopt;
      const auto each = at::cross_entropy_loss(logits, target, of_classes, at::Reduction::None, options.ignore_index,
                                               options.label_smoothing);
      const auto counts = target != options.ignore_index;
      const auto factors =
          (options.sample_weight.defined() ? options.sample_weight : torch::ones({target.size(0)})).to(each.dtype());
      const auto sum = (each * factors).sum();
      if (options.sums) return sum;
      const auto weights = of_classes ? of_classes->index_select(0, target * counts) * factors : factors;
      return sum / (weights * counts).sum();
    });
  }
};

struct Way {
  std::string name;
  void (*change)(Head&) = [](Head&) {};
  bool has_bias = false;
};

void ignore_some(Head& head) {
  head.target[0] = -100;
  head.target[4] = -100;
}
void smooth(Head& head) {
  head.options.label_smoothing = 0.1;
}
void weigh_classes(Head& head) {
  head.options.class_weight = torch::linspace(0.5, 2, head.weight.size(0));
}
void weigh_samples(Head& head) {
  head.options.sample_weight = torch::linspace(0, 3, head.input.size(0));
}

const Way ways[] = {{"mean"},
                    {"sum", [](Head& head) { head.options.sums = true; }},
                    {"ignored targets", ignore_some},
                    {"another class is ignored",
                     [](Head& head) {
                       head.options.ignore_index = 2;
                       head.target[1] = 2;
                     }},
                    {"smoothed", smooth},
                    {"weights of classes", weigh_classes},
                    {"weights of samples", weigh_samples},
                    {"all of them",
                     [](Head& head) {
                       ignore_some(head);
                       smooth(head);
                       weigh_classes(head);
                       weigh_samples(head);
                     },
                     true},
                    {"smoothed, ignored, with a bias",
                     [](Head& head) {
                       smooth(head);
                       ignore_some(head);
                     },
                     true},
                    {"in one chunk", [](Head& head) { head.options.chunk_rows = 100; }},
                    {"row by row", [](Head& head) { head.options.chunk_rows = 1; }}};

double error_of(const torch::Tensor& computed, const torch::Tensor& exact) {
  return (computed.to(torch::kFloat64) - exact).abs().max().item<double>();
}

// Each result is as near to the exact one as LibTorch's, up to some units of the largest: more of a product that adds
// up all classes, which MKL does in another order for each number of rows.
void check(const Tensors& mine, const Tensors& theirs, const Tensors& exact, double unit) {
  REQUIRE(mine.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    CHECK((mine[i].scalar_type() == theirs[i].scalar_type()));
    const double size = exact[i].abs().max().item<double>();
    const double units = i == 1 && unit < 1e-4 ? 400 : 4;
    CHECK(error_of(mine[i], exact[i]) <= error_of(theirs[i], exact[i]) + units * unit * size);
  }
}

}  // namespace

TEST_CASE("linear cross entropy: loss and gradients in chunks are as exact as LibTorch's over all logits") {
  torch::manual_seed(1);
  for (const std::int64_t classes : {3, 33, 9000}) {
    for (const auto& way : ways) {
      CAPTURE(classes);
      CAPTURE(way.name);
      Head head(10, classes);
      way.change(head);
      const auto exact = head.in(torch::kFloat64).whole(way.has_bias);
      check(head.in(torch::kFloat64).in_chunks(way.has_bias), exact, exact, 1e-13);  // both round
      for (const bool fused : {true, false}) {
        const fused_test::Fused choice(fused);
        CAPTURE(fused);
        check(head.in_chunks(way.has_bias), head.whole(way.has_bias), exact, unit_of(torch::kFloat32));
        for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
          CAPTURE(dtype);
          const auto of_rounded = head.in(dtype).in(torch::kFloat64).whole(way.has_bias);
          Tensors mine, theirs;
          {
            const vernier::Autocast autocast(torch::kCPU, dtype);
            mine = head.in_chunks(way.has_bias);
            theirs = head.whole(way.has_bias);
          }
          check(mine, theirs, of_rounded, unit_of(dtype));
          const auto narrow = head.in(dtype);
          check(narrow.in_chunks(way.has_bias), narrow.whole(way.has_bias), of_rounded, unit_of(dtype));
        }
      }
    }
  }
}

TEST_CASE("linear cross entropy: gradients that a loss scale makes large enough survive float16") {
  torch::manual_seed(2);
  Head head(64, 9000);
  head.weight *= 0.01;  // each class has about 1/9000
  const auto exact = head.in(torch::kHalf).in(torch::kFloat64).whole(false);
  const auto narrow = head.in(torch::kHalf);
  const auto gradients = narrow.run(false, [&](const auto& x, const auto& w, const auto&) {
    return vernier::linear_cross_entropy(x, w, narrow.target, narrow.options) * 4096;
  });
  for (std::size_t i = 1; i < exact.size(); ++i) {
    const double size = exact[i].abs().max().item<double>();
    CHECK(error_of(gradients[i].to(torch::kFloat64) / 4096, exact[i]) <= 4 * unit_of(torch::kHalf) * size);
  }
}

TEST_CASE("linear cross entropy: all targets ignored, a class out of range, wrong shapes, and logits that are NaN") {
  torch::manual_seed(3);
  Head head(7, 20);
  auto none = head;
  none.target = torch::full({7}, -100, torch::kInt64);
  const auto results = none.in_chunks(false), theirs = none.whole(false);
  CHECK(std::isnan(results[0].item<double>()));
  CHECK(std::isnan(theirs[0].item<double>()));
  for (const std::int64_t chunk_rows : {0, 3}) {
    for (const bool weighs : {false, true}) {
      auto mean = none;
      mean.options.chunk_rows = chunk_rows;
      if (weighs) weigh_samples(mean);
      const auto nothing = mean.in_chunks(false);
      CHECK(std::isnan(nothing[0].item<double>()));
      for (const std::size_t i : {1, 2}) CHECK(nothing[i].abs().sum().item<double>() == 0);
    }
  }
  none.options.sums = true;
  for (const auto& result : none.in_chunks(false)) CHECK(result.abs().sum().item<double>() == 0);
  for (const std::int64_t wrong : {-1, 20}) {
    auto other = head;
    other.target = head.target.clone();
    other.target[5] = wrong;
    CHECK_THROWS_AS(other.in_chunks(false), c10::IndexError);
  }
  CHECK_THROWS_AS(vernier::linear_cross_entropy(head.input, head.weight.t(), head.target), c10::Error);
  CHECK_THROWS_AS(vernier::linear_cross_entropy(head.input, head.weight, head.target.narrow(0, 0, 3)), c10::Error);
  for (const bool fused : {true, false}) {
    const fused_test::Fused choice(fused);
    auto broken = head;
    broken.input = head.input.clone();
    broken.input[6][0] = NAN;
    CHECK(std::isnan(broken.in_chunks(false)[0].item<double>()));
    broken.target = head.target.clone();
    broken.target[6] = -100;  // an ignored row does no harm
    CHECK(std::isfinite(broken.in_chunks(false)[0].item<double>()));
    auto large = head;
    large.input = head.input * 1e4;  // e^x alone would overflow
    check(large.in_chunks(false), large.whole(false), large.in(torch::kFloat64).whole(false), 0x1p-23);
  }
}

TEST_CASE("linear cross entropy: backward twice, gradients of some operands, and derivatives of gradients") {
  torch::manual_seed(4);
  const Head head(8, 40);
  const auto loss_of = [&](const torch::Tensor& x, const torch::Tensor& w) {
    return vernier::linear_cross_entropy(x, w, head.target, head.options);
  };
  const auto x = head.input.clone().requires_grad_(), w = head.weight.clone().requires_grad_();
  const auto loss = loss_of(x, w);
  const auto first = torch::autograd::grad({loss * 2}, {x, w}, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss}, {x, w});
  for (std::size_t i = 0; i < 2; ++i) CHECK(torch::allclose(first[i], second[i] * 2, 1e-6, 0));
  CHECK_THROWS_AS(torch::autograd::grad({loss}, {x, w}), c10::Error);

  const auto frozen = loss_of(x, head.weight);
  CHECK(torch::equal(torch::autograd::grad({frozen}, {x}).front(), second[0]));
  CHECK(torch::equal(torch::autograd::grad({loss_of(head.input, w)}, {w}).front(), second[1]));
  {
    const torch::NoGradGuard no_grad;
    const auto alone = loss_of(x, w);
    CHECK(!alone.requires_grad());
    CHECK(torch::equal(alone, loss));
  }
  const auto of_norm = [&](torch::ScalarType dtype, bool in_chunks) {
    const auto a = head.input.to(dtype).requires_grad_(), b = head.weight.to(dtype).requires_grad_();
    const auto value = in_chunks ? loss_of(a, b) : at::cross_entropy_loss(at::linear(a, b), head.target);
    const auto slopes = torch::autograd::grad({value}, {a, b}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({slopes[0].square().sum() + slopes[1].square().sum()}, {a, b});
  };
  const auto mine = of_norm(torch::kFloat32, true), exact = of_norm(torch::kFloat64, false);
  for (std::size_t i = 0; i < 2; ++i) CHECK(torch::allclose(mine[i].to(torch::kFloat64), exact[i], 1e-4, 1e-7));

  // A head whose input depends on its weight, as that of a model with a tied embedding.
  const auto of_tied = [&](bool in_chunks) {
    const auto b = head.weight.clone().requires_grad_();
    const auto a = head.input * b.sum(0);
    const auto value = in_chunks ? loss_of(a, b) : at::cross_entropy_loss(at::linear(a, b), head.target);
    return torch::autograd::grad({value}, {b}, {}, true, /*create_graph=*/true)[0].detach();
  };
  CHECK(torch::allclose(of_tied(true), of_tied(false), 1e-4, 1e-6));
}

namespace {

// A layer's operations, and whether it says that it changes them.
struct Look final : vernier::Interceptor {
  explicit Look(bool doubles) : doubles(doubles) {}
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    auto results = operation.proceed(std::move(arguments));
    if (operation.layer() != "head") return results;
    seen.emplace_back(operation.name());
    if (doubles) results[0] = results[0].toTensor() * 2;
    return results;
  }
  bool changes(std::string_view layer) const override { return doubles && layer == "head"; }
  bool doubles;
  std::vector<std::string> seen;
};

struct Model : torch::nn::Module {
  explicit Model(const Head& head) {
    const auto part = register_module("head", std::make_shared<torch::nn::Module>());
    weight = part->register_parameter("weight", head.weight.clone());
  }
  torch::Tensor weight;
};

}  // namespace

TEST_CASE("linear cross entropy: who looks at layers sees it and changes no bit, who changes them gets the product") {
  torch::manual_seed(5);
  const Head head(8, 40);
  const Model model(head);
  vernier::Layers layers(model);
  const auto loss = [&] { return vernier::linear_cross_entropy(head.input, model.weight, head.target, head.options); };
  const auto alone = loss();
  Look observer(false), changer(true);
  {
    const vernier::Intercept intercept(layers, observer);
    CHECK(torch::equal(loss(), alone));
  }
  CHECK(observer.seen == std::vector<std::string>{"linear_cross_entropy"});
  const vernier::Intercept intercept(layers, changer);
  const auto doubled = at::cross_entropy_loss(at::linear(head.input, head.weight) * 2, head.target);
  CHECK(torch::allclose(loss(), doubled, 1e-6, 0));
  CHECK(std::ranges::count(changer.seen, "linear") == 1);
}

TEST_CASE("linear cross entropy: many logits are never there at once") {
  torch::manual_seed(6);
  constexpr std::int64_t rows = 300, classes = 100'000, width = 4;
  vernier::count_memory(torch::kCPU);
  auto head = Head(rows, classes, width);
  head.options.chunk_rows = 0;
  const auto before = vernier::allocated_memory(torch::kCPU).now;
  vernier::reset_peak_memory(torch::kCPU);
  const auto mine = head.in_chunks(false);
  const auto peak = vernier::allocated_memory(torch::kCPU).peak - before;
  CHECK(peak < rows * classes * 4 / 2);
  {  // a validation computes no gradients
    const torch::NoGradGuard no_grad;
    const auto learned = head.weight.clone().requires_grad_();
    vernier::reset_peak_memory(torch::kCPU);
    const auto validated = vernier::allocated_memory(torch::kCPU).now;
    CHECK(at::equal(vernier::linear_cross_entropy(head.input, learned, head.target), mine[0]));
    CHECK(vernier::allocated_memory(torch::kCPU).peak - validated < peak / 2);
  }
  check(mine, head.whole(false), head.in(torch::kFloat64).whole(false), unit_of(torch::kFloat32));
}

}  // namespace linear_cross_entropy_test
