// The bytes that are expected are counted by hand from what LibTorch's derivative formulas save (tools/autograd/
// derivatives.yaml): a linear layer its input, relu its result, dropout its input's mask, softmax its result.
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>
#include <torch/nn/modules.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/memory_ledger.h>
#include <vernier/optim.h>

#include <functional>
#include <optional>
#include <string>

namespace memory_ledger_test {

using vernier::MemoryLedger;
using vernier::MemoryUse;

namespace {

// A model of bare weights, so that nothing but the operators in `forward` is called.
struct Weights final : torch::nn::Module {
  explicit Weights(const std::vector<std::pair<std::string, torch::Tensor>>& weights) {
    for (const auto& [layer, weight] : weights) {
      auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("weight", weight);
      register_module(layer, module);
    }
  }
};

MemoryUse measure(const torch::nn::Module& model, const std::function<torch::Tensor()>& loss) {
  MemoryLedger ledger(model);
  ledger.begin_forward();
  const auto value = loss();
  ledger.begin_backward();
  value.backward();
  return ledger.stop();  // the loss, which we hold, is among the others: 4 bytes
}

std::string layers_of(const MemoryUse& use) {
  std::string text;
  for (const auto& [name, bytes] : use.layers) text += name + "=" + std::to_string(bytes) + " ";
  return text;
}

}  // namespace

TEST_CASE("memory ledger: a linear layer saves its input, and an input that was there already is nobody's") {
  const auto first = torch::randn({6, 4}), second = torch::randn({3, 6});
  const Weights model({{"first", first}, {"second", second}});
  const auto input = torch::randn({5, 4});
  const auto use = measure(model, [&] { return at::linear(at::linear(input, first), second).sum(); });
  CHECK(use.bytes("weights") == (24 + 18) * 4);
  CHECK(use.bytes("gradients") == (24 + 18) * 4);
  CHECK(layers_of(use) == "first=120 ");  // 5x6, what the second layer read; sum() saves no tensor
  CHECK(use.bytes("activations") == 120);
  CHECK(use.bytes("weight copies") == 0);
  CHECK(use.bytes("optimizer") == 0);
  CHECK(use.bytes("other") == 4);
}

TEST_CASE("memory ledger: what stands between two layers belongs to the first") {
  const auto first = torch::randn({6, 4}), second = torch::randn({3, 6});
  const Weights model({{"first", first}, {"second", second}});
  const auto input = torch::randn({5, 4});
  SUBCASE("relu saves its result, which the next layer saves too: once") {
    const auto use = measure(model, [&] { return at::linear(at::relu(at::linear(input, first)), second).sum(); });
    CHECK(layers_of(use) == "first=120 ");
  }
  SUBCASE("dropout saves its mask beside its result, in the dtype of the input") {
    const auto use =
        measure(model, [&] { return at::linear(at::dropout(at::linear(input, first), 0.5, true), second).sum(); });
    CHECK(layers_of(use) == "first=" + std::to_string(120 + 120) + " ");
  }
  SUBCASE("softmax saves its result; before the first layer it is nobody's") {
    const auto raw = torch::randn({5, 4}, torch::requires_grad());
    const auto use = measure(model, [&] { return at::linear(at::softmax(raw, -1), first).sum(); });
    CHECK(layers_of(use) == "=80 ");
  }
  SUBCASE("attention: three projections, the weights of the keys, what the output projection reads") {
    const auto square = torch::randn({4, 4}), key = torch::randn({4, 4}), value = torch::randn({4, 4}),
               out = torch::randn({4, 4});
    const Weights attention({{"q", square}, {"k", key}, {"v", value}, {"o", out}});
    const auto use = measure(attention, [&] {
      const auto q = at::linear(input, square), k = at::linear(input, key), v = at::linear(input, value);
      const auto weights = at::softmax(at::matmul(q, k.t()), -1);  // 5x5
      return at::linear(at::matmul(weights, v), out).sum();
    });
    CHECK(layers_of(use) == "q=80 k=80 v=" + std::to_string(80 + 100 + 80) + " ");
  }
}

TEST_CASE("memory ledger: under bf16 activations are half, and the copies of the weights are told apart") {
  const auto first = torch::randn({6, 4}), second = torch::randn({3, 6});
  const Weights model({{"first", first}, {"second", second}});
  const auto input = torch::randn({5, 4});
  const auto loss = [&](bool cache) {
    return [&, cache] {
      const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16, true, cache);
      return at::linear(at::relu(at::linear(input, first)), second).to(torch::kFloat32).sum();
    };
  };
  for (const bool cache : {true, false}) {
    CAPTURE(cache);
    const auto use = measure(model, loss(cache));
    // The input is copied too (5x4). The first layer's copy is needed by nobody: its input wants no gradient.
    CHECK(use.bytes("activations") == (5 * 4 + 5 * 6) * 2);
    CHECK(use.bytes("weight copies") == 18 * 2);
    CHECK(use.bytes("weights") == 42 * 4);
    CHECK(use.bytes("gradients") == 42 * 4);
  }
}

TEST_CASE("memory ledger: storage that tensors share counts once, whatever its views") {
  const auto weight = torch::randn({4, 4});
  const Weights model({{"a", weight}, {"b", weight}, {"c", weight.view({2, 8})}});
  const auto input = torch::randn({5, 4});
  MemoryLedger ledger(model);
  ledger.hold("batch", {input, input.narrow(0, 0, 2), weight});
  ledger.begin_forward();
  const auto hidden = at::linear(input, weight);
  const auto loss =
      (hidden.narrow(0, 0, 2) * hidden.narrow(0, 2, 2)).sum() + at::linear(hidden.t().contiguous().t(), weight).sum();
  ledger.begin_backward();
  loss.backward();
  const auto use = ledger.stop();
  CHECK(use.bytes("weights") == 16 * 4);
  CHECK(use.bytes("batch") == 20 * 4);
  // `hidden` lives on in this scope, its transposed copy was saved by the second layer.
  CHECK(layers_of(use) == "a=80 ");
  CHECK(use.bytes("other") == 20 * 4 + 4);
}

TEST_CASE("memory ledger: the optimizer's state is what its first step leaves behind") {
  const auto weight = torch::randn({6, 4});
  const Weights model({{"layer", weight}});
  vernier::AdamW optimizer({weight});
  const auto input = torch::randn({5, 4});
  MemoryLedger ledger(model);
  const auto step = [&] {
    optimizer.zero_grad();
    ledger.begin_forward();
    const auto loss = at::linear(input, weight).sum();
    ledger.begin_backward();
    loss.backward();
    ledger.begin_update();
    optimizer.step();
    return ledger.stop();
  };
  CHECK(step().bytes("optimizer") == 2 * 24 * 4);
  const auto second = step();  // a ledger may be used again
  CHECK(second.bytes("optimizer") == 0);
  CHECK(second.bytes("gradients") == 24 * 4);
  // Somebody who knows the state may say so; what the step leaves behind is then something else.
  ledger.hold("optimizer", 2 * 24 * 4);
  CHECK(step().bytes("optimizer") == 2 * 24 * 4);
}

TEST_CASE("memory ledger: masters and their gradients are counted, those that are the model's are not masters") {
  const auto low = torch::randn({6, 4}).to(torch::kBFloat16), bias = torch::randn({6});
  const Weights model({{"layer", low}, {"norm", bias}});
  const auto master = low.detach().to(torch::kFloat32);
  auto other = torch::empty({0});
  bool late = false;
  SUBCASE("all there") {}
  SUBCASE("one that is made on the way") {
    late = true;
  }
  MemoryLedger ledger(model, {master, bias, other});
  ledger.begin_forward();
  const auto loss = at::linear(torch::ones({5, 4}, torch::kBFloat16), low).sum() + bias.sum();
  ledger.begin_backward();
  loss.backward();
  master.mutable_grad() = low.grad().to(torch::kFloat32);
  if (late) other.set_data(low.detach().to(torch::kFloat32));  // made for an update only
  const auto use = ledger.stop();
  CHECK(use.bytes("weights") == 24 * 2 + 6 * 4);
  CHECK(use.bytes("masters") == (late ? 2 : 1) * 24 * 4);
  CHECK(use.bytes("gradients") == 24 * 2 + 6 * 4 + 24 * 4);
}

TEST_CASE("memory ledger: the peak is the most at one moment, and says when") {
  const auto weight = torch::randn({64, 64});
  const Weights model({{"layer", weight}});
  const auto input = torch::randn({64, 64});
  const std::int64_t one = 64 * 64 * 4;
  SUBCASE("in forward: two temporaries beside the result") {
    const auto use = measure(model, [&] {
      { const auto a = torch::empty({64, 64}), b = torch::empty({64, 64}); }
      return weight.sum();
    });
    CHECK(use.peak == one + 2 * one);
    CHECK(use.peak_in == "forward");
  }
  SUBCASE("in backward") {
    const auto use = measure(model, [&] { return at::linear(input, weight).tanh().sum(); });
    CHECK(use.peak_in == "backward");
    CHECK(use.peak == one + 2 * one + 8);  // weight; tanh's result and the gradient below it; loss and its gradient
  }
}

TEST_CASE("memory ledger: of several micro-batches the one with most activations is reported") {
  const auto first = torch::randn({6, 4}), second = torch::randn({3, 6});
  const Weights model({{"first", first}, {"second", second}});
  MemoryLedger ledger(model);
  std::vector<torch::Tensor> losses;
  for (const std::int64_t samples : {2, 5, 3}) {
    ledger.begin_forward();
    losses.push_back(at::linear(at::linear(torch::ones({samples, 4}), first), second).sum());
    ledger.begin_backward();
    losses.back().backward();
  }
  ledger.begin_update();
  const auto use = ledger.stop();
  CHECK(layers_of(use) == "=80 first=120 ");  // the input was made in forward
  CHECK(use.bytes("gradients") == 42 * 4);
  CHECK(use.bytes("optimizer") == 0);
  CHECK(use.bytes("other") == 3 * 4);
}

TEST_CASE("memory ledger: two at once are refused, and one that is gone leaves nothing behind") {
  const auto weight = torch::randn({6, 4});
  const Weights model({{"layer", weight}});
  const auto profiled = [] { return c10::memoryProfilingEnabled(); };
  {
    MemoryLedger ledger(model), another(model);
    CHECK_FALSE(profiled());
    CHECK_THROWS_AS(ledger.stop(), vernier::Error);
    CHECK(MemoryLedger::can_follow());
    ledger.follow();
    CHECK_FALSE(MemoryLedger::can_follow());
    ledger.begin_forward();
    CHECK(profiled());
    CHECK(at::hasThreadLocalCallbacks());
    CHECK_THROWS_WITH_AS(
        another.begin_forward(),
        "memory cannot be followed: a profiler or another ledger does so already; take them one after another",
        vernier::Error);
  }
  CHECK_FALSE(profiled());
  CHECK_FALSE(at::hasThreadLocalCallbacks());
}

TEST_CASE("memory ledger: the table folds layers that are alike and sums up what is beyond its rows") {
  MemoryUse fp32, bf16;
  fp32.parts = {{"weights", 1000}, {"activations", 4096 + 2048 + 30 + 20 + 10}, {"other", 4}};
  fp32.layers = {{"", 10}, {"h.0.mlp", 4000}, {"h.1.mlp", 96}, {"norm", 2048}, {"a", 30}, {"b", 20}};
  fp32.peak = 12345678;
  fp32.peak_in = "backward";
  bf16.parts = {{"weights", 1000}, {"weight copies", 500}, {"activations", 2048}};
  bf16.layers = {{"h.0.mlp", 2048}};
  bf16.peak = 999;
  bf16.peak_in = "forward";
  CHECK(vernier::memory_table({{"fp32", fp32}, {"bf16", bf16}}, 2) ==
        "memory                                    fp32        bf16\n"
        "  weights                              1.00 kB     1.00 kB\n"
        "  weight copies                              -       500 B\n"
        "  other                                    4 B           -\n"
        "  activations, saved for backward      6.20 kB     2.05 kB\n"
        "    h.*.mlp x2                         4.10 kB     2.05 kB\n"
        "    norm                               2.05 kB           -\n"
        "    3 more                                60 B           -\n"
        "  peak                                 12.3 MB       999 B\n"
        "    in                                backward     forward\n");
}

}  // namespace memory_ledger_test
