#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <vernier/error.h>
#include <vernier/grad_norm.h>
#include <vernier/grad_scaler.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "oracle.h"

namespace grad_scaler_test {

using vernier::Error;
using vernier::GradScaler;
using vernier::GradScalerOptions;
using vernier::SGD;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

torch::Tensor parameter(double gradient = 0) {
  auto tensor = torch::ones({4}).requires_grad_();
  tensor.mutable_grad() = torch::full({4}, gradient);
  return tensor;
}

// PyTorch's law, written down once more. Factors multiply in float64 and round once.
struct Law {
  float scale;
  int tracker = 0;

  void update(bool found_inf, const GradScalerOptions& options) {
    if (found_inf) {
      scale = static_cast<float>(scale * options.backoff_factor);
      tracker = 0;
    } else if (++tracker == options.growth_interval) {
      const auto grown = static_cast<float>(scale * options.growth_factor);
      if (std::isfinite(grown)) scale = grown;
      tracker = 0;
    }
  }
};

}  // namespace

TEST_CASE("grad_scaler: 24 patterns of inf and nan, step for step and bit for bit as PyTorch") {
  const Oracle oracle("grad_scaler");
  for (std::int64_t c = 0; c < 24; ++c) {
    CAPTURE(c);
    GradScaler scaler(torch::kCPU, {.init_scale = oracle["rule.init_scale"][c].item<double>(),
                                    .growth_factor = oracle["rule.growth_factor"][c].item<double>(),
                                    .backoff_factor = oracle["rule.backoff_factor"][c].item<double>(),
                                    .growth_interval = oracle["rule.growth_interval"][c].item<std::int64_t>()});
    const auto weight = torch::ones({}).requires_grad_();
    SGD optimizer({weight}, {.lr = 0.5});
    for (std::int64_t k = 0; k < 200; ++k) {
      auto gradient = scaler.scale(torch::scalar_tensor((k * 37 % 101 - 50) / 1024.0, torch::kFloat));
      const int pattern = oracle["rule.pattern"][c][k].item<int>();
      if (pattern == 1) gradient.fill_(k % 2 == 0 ? infinity : -infinity);
      if (pattern == 2) gradient.fill_(NAN);
      weight.mutable_grad() = gradient;
      const auto found_inf = vernier::unscale_gradients_({gradient.clone()}, scaler.scale_tensor());
      REQUIRE(same_bits(found_inf, oracle["rule.found_inf"][c][k]));
      scaler.unscale_(optimizer);
      scaler.step(optimizer);
      scaler.update();
      REQUIRE(same_bits(scaler.scale_tensor(), oracle["rule.scale"][c][k]));
      REQUIRE(scaler.get_growth_tracker() == oracle["rule.growth_tracker"][c][k].item<int>());
      REQUIRE(same_bits(weight.detach(), oracle["rule.weight"][c][k]));
    }
  }
}

TEST_CASE("grad_scaler: unscaled gradients and found_inf have PyTorch's bits in float32, bfloat16 and float16") {
  const Oracle oracle("grad_scaler");
  for (const std::string type : {"f32", "bf16", "f16"}) {
    for (std::int64_t r = 0; r < 24; ++r) {
      CAPTURE(type);
      CAPTURE(r);
      const auto gradient = oracle["unscale." + type + ".before"][r].clone();
      const auto found_inf = vernier::unscale_gradients_({gradient}, oracle["unscale.scale"][r]);
      CHECK(same_bits(gradient, oracle["unscale." + type + ".after"][r]));
      CHECK(same_bits(found_inf, oracle["unscale." + type + ".found_inf"][r]));
    }
  }
  for (std::int64_t r = 0; r < 24; ++r) {
    CAPTURE(r);
    const auto one = torch::ones({});
    vernier::unscale_gradients_({one}, oracle["unscale.scale"][r]);
    CHECK(same_bits(one, oracle["unscale.inv_scale"][r]));
  }
}

TEST_CASE("grad_scaler: with AdamW and SGD the weights are where Python's fused ones are") {
  const Oracle oracle("optimizers");
  const float overflow[] = {infinity, NAN, -infinity, NAN, infinity, infinity, NAN, infinity};
  const int overflow_step[] = {4, 5, 17, 40, 41, 42, 77, 99};
  for (const std::string name : {"adamw_unscaled", "adamw_scaled", "sgd_unscaled"}) {
    CAPTURE(name);
    std::vector<torch::Tensor> parameters, targets;
    const std::int64_t sizes[] = {1, 1, 7, 15, 24, 561};
    const auto starts = oracle["start"].split_with_sizes(sizes), goals = oracle["target"].split_with_sizes(sizes);
    for (std::size_t i = 0; i < 6; ++i) {
      parameters.push_back(starts[i].clone().requires_grad_());
      targets.push_back(goals[i]);
    }
    vernier::AdamW adamw(parameters, {.lr = 0.01});
    SGD sgd(parameters, {.lr = 0.01, .momentum = 0.9});
    vernier::FusedOptimizer& optimizer = name == "sgd_unscaled" ? static_cast<vernier::FusedOptimizer&>(sgd) : adamw;
    GradScaler scaler(torch::kCPU, {.init_scale = 1000, .growth_interval = 10});
    int overflows = 0;
    for (int step = 1; step <= 100; ++step) {
      for (std::size_t i = 0; i < 6; ++i) {
        const auto gradient = (parameters[i].detach() - targets[i]) * (1 + 0.25 * ((step - 1) % 5));
        parameters[i].mutable_grad() = gradient * scaler.scale_tensor();
      }
      if (overflows < 8 && overflow_step[overflows] == step) {
        parameters[static_cast<std::size_t>(step % 6)].mutable_grad()[0].fill_(overflow[overflows++]);
      }
      if (name != "adamw_scaled") scaler.unscale_(optimizer);
      scaler.step(optimizer);
      scaler.update();
      CHECK(scaler.get_scale() == oracle[name + ".scales"][step - 1].item<double>());
      const auto recorded = name + "." + std::to_string(step) + ".parameters";
      if (!oracle.has(recorded)) continue;
      CHECK((torch::cat(parameters) - oracle[recorded]).abs().max().item<double>() <= 5e-6);
      const auto& plain = oracle[name + ".plain." + std::to_string(step) + ".parameters"];
      CHECK((torch::cat(parameters) - plain).abs().max().item<double>() <= 5e-6);
      const auto state = optimizer.state_dict();
      for (const std::string part : {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"}) {
        const auto state_name = name + "." + std::to_string(step) + "." + part;
        if (!oracle.has(state_name)) continue;
        CAPTURE(state_name);
        std::vector<torch::Tensor> all;
        for (int i = 0; i < 6; ++i) all.push_back(state.tensor(std::to_string(i) + "/" + part).flatten());
        CHECK((torch::cat(all) - oracle[state_name]).abs().max().item<double>() <= 5e-6);
      }
    }
  }
}

TEST_CASE("grad_scaler: the law holds for any factors, intervals and patterns") {
  std::mt19937 random(5);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  for (int run = 0; run < 40; ++run) {
    const GradScalerOptions options{.init_scale = std::exp2(uniform(-20, 40)),
                                    .growth_factor = uniform(1.0001, 4),
                                    .backoff_factor = uniform(0.01, 0.999),
                                    .growth_interval = 1 + static_cast<int>(random() % 5)};
    GradScaler scaler(torch::kCPU, options);
    Law law{static_cast<float>(options.init_scale)};
    for (int step = 0; step < 300; ++step) {
      const bool overflow = random() % 4 == 0;
      const auto gradient = torch::full({3}, scaler.get_scale());
      if (overflow) gradient[2].fill_(infinity);
      const auto inverse = static_cast<float>(1.0 / static_cast<double>(law.scale));
      const auto found_inf = scaler.unscale_({gradient});
      REQUIRE(found_inf.item<float>() == (overflow ? 1 : 0));
      REQUIRE(same_bits(gradient[0], torch::full({}, law.scale * inverse)));  // nan at the scale 0
      scaler.update();
      law.update(overflow, options);
      REQUIRE(scaler.get_scale() == law.scale);
      REQUIRE(scaler.get_growth_tracker() == law.tracker);
    }
  }
}

TEST_CASE("grad_scaler: a list may mix dtypes and has one found_inf") {
  for (std::size_t bad = 0; bad < 5; ++bad) {
    std::vector<torch::Tensor> gradients;
    for (const auto dtype : {torch::kHalf, torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      gradients.push_back(torch::full({70}, 8.0, dtype));
    }
    if (bad < 4) gradients[bad][69].fill_(NAN);
    GradScaler scaler(torch::kCPU, {.init_scale = 4});
    const auto found_inf = scaler.unscale_(gradients);
    CHECK((found_inf.scalar_type() == torch::kFloat));
    CHECK(found_inf.dim() == 0);
    CHECK(found_inf.item<float>() == (bad < 4 ? 1 : 0));
    for (const auto& gradient : gradients) CHECK(gradient[0].item<float>() == 2);
  }
}

TEST_CASE("grad_scaler: the gradient of a scaled loss is unscaled to that of the loss") {
  const auto weight = torch::full({3}, 2.0).requires_grad_();
  SGD optimizer({weight}, {.lr = 1});
  GradScaler scaler(torch::kCPU);
  scaler.scale(weight.square().sum()).backward();
  CHECK(weight.grad()[0].item<float>() == 4 * 65536);
  scaler.step(optimizer);
  scaler.update();
  CHECK(weight[0].item<float>() == -2);
  CHECK(scaler.get_growth_tracker() == 1);
}

TEST_CASE("grad_scaler: LibTorch's optimizers are stepped or skipped") {
  const auto weight = parameter(65536 * 0.5);
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler(torch::kCPU);
  scaler.step(optimizer);
  scaler.update();
  CHECK(weight[0].item<float>() == 0.5);
  CHECK(scaler.get_scale() == 65536);
  weight.mutable_grad()[3].fill_(infinity);
  scaler.unscale_(optimizer);
  scaler.step(optimizer);
  scaler.update();
  CHECK(weight[0].item<float>() == 0.5);
  CHECK(scaler.get_scale() == 32768);
}

TEST_CASE("grad_scaler: of two optimizers one is skipped, and the scale goes back") {
  const auto good = parameter(65536), bad = parameter(infinity);
  SGD one({good}, {.lr = 1}), two({bad}, {.lr = 1});
  GradScaler scaler(torch::kCPU);
  scaler.step(one);
  scaler.step(two);
  scaler.update();
  CHECK(good[0].item<float>() == 0);
  CHECK(bad[0].item<float>() == 1);
  CHECK(scaler.get_scale() == 32768);
}

TEST_CASE("grad_scaler: a sparse gradient is unscaled") {
  const auto indices = torch::tensor({{0, 2, 2}}, torch::kLong);
  const auto weight = torch::zeros({4}, torch::kHalf).requires_grad_();
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler(torch::kCPU, {.init_scale = 2});
  weight.mutable_grad() =
      torch::sparse_coo_tensor(indices, torch::tensor({2.f, 4.f, 6.f}).to(torch::kHalf), weight.sizes());
  scaler.unscale_(optimizer);
  CHECK(torch::equal(weight.grad().to_dense(), torch::tensor({1.f, 0.f, 5.f, 0.f}).to(torch::kHalf)));
  scaler.update();
  CHECK(scaler.get_scale() == 2);
  // Each is finite, their sum is not.
  weight.mutable_grad() =
      torch::sparse_coo_tensor(indices, torch::tensor({2.f, 6e4f, 6e4f}).to(torch::kHalf), weight.sizes());
  scaler.unscale_(optimizer);
  scaler.update();
  CHECK(scaler.get_scale() == 1);
}

TEST_CASE("grad_scaler: calls in the wrong order are refused as PyTorch refuses them") {
  const auto refused = [](const auto& call, const char* why) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains(why), Error);
  };
  const auto weight = parameter(1);
  SGD fused({weight});
  torch::optim::SGD plain({weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler(torch::kCPU);
  refused([&] { scaler.update(); }, "No inf checks were recorded prior to update");
  for (const bool is_fused : {true, false}) {
    const auto unscale = [&] { is_fused ? scaler.unscale_(fused) : scaler.unscale_(plain); };
    const auto step = [&] { is_fused ? scaler.step(fused) : scaler.step(plain); };
    unscale();
    refused(unscale, "unscale_() has already been called on this optimizer since the last update()");
    step();
    refused(step, "step() has already been called since the last update()");
    refused(unscale, "unscale_() is being called after step()");
    scaler.update();
    step();
    refused(step, "step() has already been called since the last update()");
    scaler.update();
    weight.mutable_grad().reset();
    refused(step, "No inf checks were recorded for this optimizer");
    refused([&] { scaler.update(); }, "No inf checks were recorded prior to update");
    weight.mutable_grad() = torch::ones({4});
    scaler.update(8.0);
  }
  refused([] { GradScaler(torch::kCPU, {.growth_factor = 1}); }, "The growth factor must be > 1.0");
  refused([] { GradScaler(torch::kCPU, {.backoff_factor = 1}); }, "The backoff factor must be < 1.0");
}

TEST_CASE("grad_scaler: update() with a scale sets it and leaves the tracker") {
  const auto weight = parameter(1);
  SGD optimizer({weight});
  GradScaler scaler(torch::kCPU);
  scaler.step(optimizer);
  scaler.update();
  scaler.update(123.5);
  CHECK(scaler.get_scale() == 123.5);
  CHECK(scaler.get_growth_tracker() == 1);
}

namespace {

// The same parameters, gradients and optimizer twice: one for the four calls of PyTorch, one for clip_and_step.
struct Pair {
  explicit Pair(GradScalerOptions options) {
    for (auto& side : sides) {
      side.parameters = {torch::ones({33, 5}).requires_grad_(), torch::zeros({}).requires_grad_(),
                         torch::full({700}, 0.5).requires_grad_(), torch::ones({2}).requires_grad_()};
      side.optimizer = std::make_unique<vernier::AdamW>(side.parameters, vernier::AdamWOptions{.lr = 0.01});
      side.scaler = std::make_unique<GradScaler>(torch::kCPU, options);
    }
  }
  // Gradients as a backward pass of the scaled loss gives them; the last parameter has none.
  void set_gradients(double size, double bad = 0) {
    torch::Tensor drawn[] = {torch::randn({33, 5}), torch::randn({}), torch::randn({700})};
    for (auto& side : sides) {
      for (std::size_t i = 0; i < 3; ++i) {
        side.parameters[i].mutable_grad() = side.scaler->scale(drawn[i] * size);
      }
      if (bad != 0) side.parameters[2].mutable_grad()[699] = bad;
    }
  }
  torch::Tensor four_calls(double max_norm) {
    auto& [parameters, optimizer, scaler] = sides[0];
    scaler->unscale_(*optimizer);
    auto norm = vernier::clip_grad_norm_(optimizer->gradients(), max_norm);
    scaler->step(*optimizer);
    scaler->update();
    return norm;
  }
  torch::Tensor one_call(double max_norm) {
    auto& [parameters, optimizer, scaler] = sides[1];
    auto norm = scaler->clip_and_step(*optimizer, max_norm);
    scaler->update();
    return norm;
  }
  bool has_same_bits() const {
    const auto a = sides[0].optimizer->state_dict(), b = sides[1].optimizer->state_dict();
    bool same = a.tensors.size() == b.tensors.size() && sides[0].scaler->get_scale() == sides[1].scaler->get_scale();
    for (const auto& [name, tensor] : a.tensors) same &= same_bits(tensor, b.tensor(name));
    for (std::size_t i = 0; i < 4; ++i)
      same &= same_bits(sides[0].parameters[i].detach(), sides[1].parameters[i].detach());
    return same;
  }
  double difference() const {
    double most = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      most = std::max(most, distance(sides[1].parameters[i].detach(), sides[0].parameters[i].detach()));
    }
    return most;
  }
  struct Side {
    std::vector<torch::Tensor> parameters;
    std::unique_ptr<vernier::AdamW> optimizer;
    std::unique_ptr<GradScaler> scaler;
  } sides[2];
};

}  // namespace

TEST_CASE(
    "grad_scaler: clip_and_step is the four calls: every bit where nothing is clipped, and where a step is skipped") {
  at::set_num_threads(1);
  torch::manual_seed(8);
  std::mt19937 random(8);
  for (int round = 0; round < 20; ++round) {
    Pair pair({.init_scale = std::exp2(static_cast<double>(random() % 20)), .growth_interval = 3});
    for (int step = 0; step < 12; ++step) {
      const double bads[] = {0, 0, 0, infinity, -infinity, std::nan("")};
      pair.set_gradients(1e-3, bads[random() % 6]);
      const auto four = pair.four_calls(1.0), one = pair.one_call(1.0);
      const bool is_finite = std::isfinite(four.item<float>());
      CHECK(std::isfinite(one.item<float>()) == is_finite);
      if (is_finite) CHECK(one.item<float>() == doctest::Approx(four.item<float>()).epsilon(1e-6));
      REQUIRE(pair.has_same_bits());
    }
  }
}

TEST_CASE("grad_scaler: clip_and_step divides once by scale and clipping, to the last bits") {
  at::set_num_threads(1);
  torch::manual_seed(9);
  Pair pair({.init_scale = 1024, .growth_interval = 5});
  bool is_other = false;
  for (int step = 0; step < 40; ++step) {
    pair.set_gradients(0.1 * (1 + step % 7), step % 11 == 10 ? infinity : 0);
    const auto four = pair.four_calls(0.5), one = pair.one_call(0.5);
    if (step % 11 != 10) {
      CHECK(four.item<float>() > 0.5);
      CHECK(one.item<float>() == doctest::Approx(four.item<float>()).epsilon(1e-6));
    }
    CHECK(pair.difference() < 2e-6);
    CHECK(pair.sides[0].scaler->get_scale() == pair.sides[1].scaler->get_scale());
    is_other |= !pair.has_same_bits();
  }
  CHECK(is_other);  // its comment says so
}

TEST_CASE("grad_scaler: clip_and_step after unscale_, without a scaler, and in the wrong order") {
  at::set_num_threads(1);
  torch::manual_seed(10);
  for (const bool is_enabled : {true, false}) {
    Pair pair({.init_scale = 64, .enabled = is_enabled});
    pair.set_gradients(1e-3);
    pair.sides[1].scaler->unscale_(*pair.sides[1].optimizer);  // its caller looked at them
    pair.four_calls(1.0);
    pair.one_call(1.0);
    CHECK(pair.has_same_bits());
    CHECK(pair.sides[1].parameters[0].sub(1).abs().max().item<double>() > 0);
  }
  Pair pair({.init_scale = 64});
  auto& [parameters, optimizer, scaler] = pair.sides[1];
  CHECK_THROWS_WITH_AS(scaler->clip_and_step(*optimizer, 1.0), doctest::Contains("no gradients"), Error);
  pair.set_gradients(1);
  scaler->clip_and_step(*optimizer, 1.0);
  CHECK_THROWS_WITH_AS(scaler->clip_and_step(*optimizer, 1.0), doctest::Contains("already been called"), Error);
  scaler->update();
  const auto weight = torch::ones({4}, torch::kBFloat16).requires_grad_();
  weight.mutable_grad() = torch::ones({4}, torch::kBFloat16);
  SGD in_16_bits({weight});
  CHECK_THROWS_WITH_AS(scaler->clip_and_step(in_16_bits, 1.0), doctest::Contains("float32"), Error);
}

TEST_CASE("grad_scaler: unscale_ and step say whether the optimizer is skipped, each optimizer for itself") {
  const auto first = parameter(1), second = parameter(1);
  SGD fused({first}, {.lr = 1});
  torch::optim::SGD plain({second}, torch::optim::SGDOptions(1.0));
  GradScaler scaler(torch::kCPU, {.init_scale = 4});
  for (const bool unscales : {true, false}) {
    for (const bool is_bad : {true, false}) {
      CAPTURE(unscales);
      CAPTURE(is_bad);
      const auto before = first.detach().clone();
      first.mutable_grad() = torch::full_like(first, is_bad ? NAN : 1.0F);
      second.mutable_grad() = torch::full_like(second, 1.0F);
      if (unscales) CHECK(scaler.unscale_(fused).item<float>() == (is_bad ? 1 : 0));
      if (unscales) CHECK(scaler.unscale_(plain).item<float>() == 0);
      CHECK(scaler.step(fused).item<float>() == (is_bad ? 1 : 0));
      CHECK(scaler.step(plain).item<float>() == 0);
      CHECK(torch::equal(first.detach(), before) == is_bad);
      scaler.update();
    }
  }
}

TEST_CASE("grad_scaler: not enabled it only calls the optimizer") {
  const auto weight = parameter(0.25);
  SGD fused({weight}, {.lr = 1});
  torch::optim::SGD plain({weight}, torch::optim::SGDOptions(1.0));
  GradScaler scaler(torch::kCPU, {.enabled = false});
  const auto loss = torch::ones({});
  CHECK(scaler.scale(loss).is_same(loss));
  CHECK_FALSE(scaler.unscale_(fused).defined());
  CHECK_FALSE(scaler.unscale_({weight.grad()}).defined());
  scaler.step(fused);
  scaler.step(plain);
  scaler.step(plain);
  scaler.update();
  CHECK(weight[0].item<float>() == 0.25);
  CHECK(scaler.get_scale() == 1);
  CHECK(scaler.get_growth_tracker() == 0);
  CHECK(scaler.state_dict().tensors.empty());
  scaler.load_state_dict({});
  CHECK_FALSE(scaler.is_enabled());
}

TEST_CASE("grad_scaler: a state goes into a fresh scaler, or is refused before any change") {
  const auto weight = parameter(1);
  SGD optimizer({weight});
  GradScaler scaler(torch::kCPU, {.init_scale = 96, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 4});
  for (int i = 0; i < 6; ++i) {
    scaler.step(optimizer);
    scaler.update();
  }
  const auto state = scaler.state_dict();
  CHECK(state.real("scale") == 288);
  CHECK(state.integer("_growth_tracker") == 2);

  GradScaler fresh(torch::kCPU);
  auto damaged = state;
  damaged.tensors.erase("growth_interval");
  CHECK_THROWS_WITH_AS(fresh.load_state_dict(damaged), doctest::Contains("growth_interval"), Error);
  CHECK_THROWS_WITH_AS(fresh.load_state_dict({}), doctest::Contains("empty"), Error);
  CHECK(fresh.get_scale() == 65536);
  CHECK(fresh.options().growth_factor == 2);

  fresh.load_state_dict(state);
  for (int i = 0; i < 10; ++i) {
    weight.mutable_grad().fill_(i == 4 ? infinity : 1);
    for (auto* each : {&scaler, &fresh}) {
      each->unscale_({weight.grad()});
      each->update();
    }
    CHECK(fresh.get_scale() == scaler.get_scale());
    CHECK(fresh.get_growth_tracker() == scaler.get_growth_tracker());
  }
}

}  // namespace grad_scaler_test
