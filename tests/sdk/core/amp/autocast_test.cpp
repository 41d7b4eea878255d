#include <ATen/autocast_mode.h>
#include <vernier/autocast.h>
#include <vernier/error.h>

#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "oracle.h"

namespace autocast_test {

// Types are compared in double parentheses: doctest cannot print them (c10 has a toString() of its own).

using vernier::Autocast;

namespace {

at::ScalarType type_of_product() {
  return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

// State that a guard must leave as it was.
auto autocast_state() {
  const int nesting = at::autocast::increment_nesting() - 1;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  return std::tuple(nesting, at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                    at::autocast::is_autocast_cache_enabled());
}

}  // namespace

TEST_CASE("autocast: a guard casts inside and leaves the state as it was") {
  const auto before = autocast_state();
  {
    const Autocast autocast(at::kCPU, at::kHalf);
    CHECK((type_of_product() == at::kHalf));
  }
  CHECK(autocast_state() == before);
  CHECK((type_of_product() == at::kFloat));
}

TEST_CASE("autocast: guards nest, with other dtypes and switched off") {
  const auto before = autocast_state();
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      CHECK((type_of_product() == at::kHalf));
      {
        const Autocast off(at::kCPU, at::kHalf, false);
        CHECK((type_of_product() == at::kFloat));
        const auto half = at::ones({2, 2}, at::kHalf);
        CHECK((at::matmul(half, half).scalar_type() == at::kHalf));
      }
      CHECK((type_of_product() == at::kHalf));
    }
    CHECK((type_of_product() == at::kBFloat16));
  }
  CHECK(autocast_state() == before);
}

TEST_CASE("autocast: an exception ends the guard") {
  const auto before = autocast_state();
  try {
    const Autocast autocast(at::kCPU, at::kBFloat16, true, false);
    throw std::runtime_error("out of the region");
  } catch (const std::runtime_error&) {
  }
  CHECK(autocast_state() == before);
}

TEST_CASE("autocast: another thread is not cast") {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  at::ScalarType there = at::kBFloat16, with_its_own = at::kFloat;
  std::thread([&] {
    there = type_of_product();
    const Autocast own(at::kCPU, at::kHalf);
    with_its_own = type_of_product();
  }).join();
  CHECK((there == at::kFloat));
  CHECK((with_its_own == at::kHalf));
  CHECK((type_of_product() == at::kBFloat16));
}

TEST_CASE("autocast: the cache keeps a weight's copy until the outermost guard ends") {
  const auto input = at::ones({1, 4});
  auto weight = at::ones({1, 4}).requires_grad_();
  const auto output = [&] { return at::linear(input, weight).item<float>(); };
  const auto change = [&](double value) {
    const at::NoGradGuard no_grad;
    weight.fill_(value);
  };
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    CHECK(output() == 4);
    change(2);
    CHECK(output() == 4);  // the copy
    {
      const Autocast inner(at::kCPU, at::kBFloat16);
      CHECK(output() == 4);
    }
    CHECK(output() == 4);
  }
  const Autocast autocast(at::kCPU, at::kBFloat16);
  CHECK(output() == 8);
}

TEST_CASE("autocast: without the cache a weight is cast each time") {
  const auto input = at::ones({1, 4});
  auto weight = at::ones({1, 4}).requires_grad_();
  const Autocast autocast(at::kCPU, at::kBFloat16, true, false);
  CHECK(at::linear(input, weight).item<float>() == 4);
  {
    const at::NoGradGuard no_grad;
    weight.fill_(2);
  }
  CHECK(at::linear(input, weight).item<float>() == 8);
}

TEST_CASE("autocast: a dtype that it cannot compute in is refused") {
  const auto before = autocast_state();
  CHECK_THROWS_WITH_AS(Autocast(at::kCPU, at::kDouble), "autocast computes in Half, BFloat16 or Float, not in Double",
                       vernier::Error);
  CHECK(autocast_state() == before);
  const Autocast off(at::kCPU, at::kDouble, false);
  CHECK((type_of_product() == at::kFloat));
}

namespace {

using Leaves = std::map<std::string, torch::Tensor>;

struct Result {
  torch::Tensor output, loss;
};

Result mlp(const Leaves& t, const torch::Tensor& target) {
  auto h = at::gelu(at::linear(t.at("input"), t.at("w1"), t.at("b1")));
  h = at::layer_norm(h, {32}, t.at("ln_w"), t.at("ln_b"), 1e-5);
  const auto output = at::linear(h, t.at("w2"), t.at("b2"));
  return {output, at::cross_entropy_loss(output, target)};
}

Result conv(const Leaves& t, const torch::Tensor& target) {
  const auto h = at::relu(at::conv2d(t.at("input"), t.at("w1"), t.at("b1"), 1, 1));
  const auto output = at::linear(h.flatten(1), t.at("w2"), t.at("b2"));
  return {output, at::cross_entropy_loss(output, target)};
}

Result attention(const Leaves& t, const torch::Tensor& target) {
  const auto qkv = at::linear(t.at("input"), t.at("w1"), t.at("b1")).split(24, 2);
  const auto heads = [](const torch::Tensor& x) { return x.view({2, 9, 3, 8}).transpose(1, 2); };
  const auto h =
      at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, 0.0, /*is_causal=*/true);
  const auto output = at::linear(h.transpose(1, 2).reshape({2, 9, 24}), t.at("w2"), t.at("b2"));
  return {output, at::mse_loss(output, target)};
}

struct Kind {
  const char* name;
  at::ScalarType dtype;
  double loss, rest;  // tolerances, tests/oracles/README.md
};

void compare(const Oracle& oracle, const std::string& net, Result (*forward)(const Leaves&, const torch::Tensor&),
             const Kind& kind) {
  CAPTURE(net);
  CAPTURE(kind.name);
  Leaves leaves;
  for (const char* name : {"input", "w1", "b1", "w2", "b2", "ln_w", "ln_b"}) {
    if (oracle.has(net + "." + name)) leaves[name] = oracle[net + "." + name].clone().requires_grad_();
  }
  Result result;
  {
    const Autocast autocast(at::kCPU, kind.dtype, kind.dtype != at::kFloat);
    result = forward(leaves, oracle[net + ".target"]);
  }
  result.loss.backward();
  const auto recorded = net + "." + kind.name + ".";
  CHECK((result.output.scalar_type() == kind.dtype));
  CHECK((result.loss.scalar_type() == at::kFloat));
  CHECK(distance(result.output, oracle[recorded + "output"]) <= kind.rest);
  CHECK(distance(result.loss, oracle[recorded + "loss"]) <= kind.loss);
  for (const auto& [name, leaf] : leaves) {
    CAPTURE(name);
    CHECK(distance(leaf.grad(), oracle[recorded + "grad." + name]) <= kind.rest);
  }
  // The tolerances would pass a net that was cast only at its end.
  const auto equal = result.output.eq(oracle[recorded + "output"]).to(at::kFloat).mean().item<float>();
  if (kind.dtype != at::kFloat) CHECK(equal >= 2.0 / 3);
}

}  // namespace

TEST_CASE("autocast: outputs, losses and gradients are Python's") {
  const Oracle oracle("autocast");
  for (const Kind& kind : {Kind{"fp32", at::kFloat, 2e-6, 2e-6}, Kind{"bf16", at::kBFloat16, 2e-4, 2e-2},
                           Kind{"fp16", at::kHalf, 5e-5, 3e-3}}) {
    compare(oracle, "mlp", mlp, kind);
    compare(oracle, "conv", conv, kind);
    compare(oracle, "attention", attention, kind);
  }
}

}  // namespace autocast_test
