// Each gradient used and freed in backward.
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/error.h>
#include <vernier/memory_ledger.h>
#include <vernier/optim.h>

#include <functional>
#include <memory>
#include <string>

#include "oracle.h"

namespace optim_in_backward_test {

using vernier::Error;
using Parameters = std::vector<torch::Tensor>;

namespace {

struct Net : torch::nn::Module {
  explicit Net(std::int64_t width = 24, std::int64_t layers = 4) {
    torch::manual_seed(2);
    for (std::int64_t i = 0; i < layers; ++i) {
      linears.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(width, width)));
    }
    unused = register_parameter("unused", torch::ones({3}));
  }
  torch::Tensor loss(torch::Tensor x) {
    for (auto& linear : linears) x = torch::tanh(linear(x));
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> linears;
  torch::Tensor unused;
};

torch::Tensor batch(int step, std::int64_t width = 24) {
  torch::manual_seed(50 + step);
  return torch::randn({6, width});
}

using Make = std::function<std::unique_ptr<vernier::FusedOptimizer>(Parameters)>;

template <class Optimizer, class Options>
Make make(Options options) {
  return [options](Parameters parameters) { return std::make_unique<Optimizer>(std::move(parameters), options); };
}

std::vector<Make> all_kinds() {
  using vernier::AdamState;
  return {make<vernier::AdamW>(vernier::AdamWOptions{.lr = 0.01}),
          make<vernier::AdamW>(vernier::AdamWOptions{.lr = 0.01, .amsgrad = true}),
          make<vernier::AdamW>(vernier::AdamWOptions{.lr = 0.01, .state = AdamState::bfloat16}),
          make<vernier::Adam>(vernier::AdamOptions{.lr = 0.01, .weight_decay = 0.1, .state = AdamState::eight_bit}),
          make<vernier::SGD>(vernier::SGDOptions{.lr = 0.1}),
          make<vernier::SGD>(vernier::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5})};
}

bool same_bits(const vernier::State& a, const vernier::State& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    if (!b.has(name) || !tensor.equal(b.tensor(name))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("optim in backward: the bits of step(), and no gradient is left") {
  for (const auto& make : all_kinds()) {
    Net net(72), plain(72);
    const auto optimizer = make(net.parameters()), reference = make(plain.parameters());
    for (int step = 0; step < 5; ++step) {
      const auto x = batch(step, 72);
      optimizer->set_lr(0.01 / (step + 1));
      reference->set_lr(0.01 / (step + 1));
      const bool in_two_micro_batches = step % 2 == 1;
      if (in_two_micro_batches) {  // the first only adds up
        optimizer->step_in_backward(false);
        net.loss(x * 2).backward();
        CHECK(optimizer->gradients().size() == 8);
        plain.loss(x * 2).backward();
      }
      optimizer->step_in_backward();
      net.loss(x).backward();
      CHECK(optimizer->gradients().empty());
      plain.loss(x).backward();
      reference->step();
      reference->zero_grad();
      for (std::size_t i = 0; i < net.parameters().size(); ++i) {
        CHECK(::same_bits(net.parameters()[i].detach(), plain.parameters()[i].detach()));
      }
      CHECK(same_bits(optimizer->state_dict(), reference->state_dict()));
    }
  }
}

TEST_CASE("optim in backward: two gradients are there at a time, where step() needs them all") {
  constexpr std::int64_t width = 256, layers = 8;
  const auto peak = [&](bool in_backward) {
    Net net(width, layers);
    vernier::SGD optimizer(net.parameters(), {.lr = 0.1});
    vernier::MemoryLedger ledger(net);
    optimizer.step_in_backward(in_backward);
    ledger.begin_forward();
    const auto loss = net.loss(batch(0, width));
    ledger.begin_backward();
    loss.backward();
    ledger.begin_update();
    if (!in_backward) optimizer.step();
    const auto use = ledger.stop();
    CHECK((use.bytes("gradients") == 0) == in_backward);
    return use.peak;
  };
  const std::int64_t weight = width * width * 4;
  const auto ordinary = peak(false), freed = peak(true);
  CHECK(ordinary - freed >= (layers - 2) * weight);
}

TEST_CASE("optim in backward: a pass that was not asked for, and parts that share a parameter, are refused") {
  Net net;
  vernier::SGD optimizer(net.parameters(), {.lr = 0.1});
  optimizer.step_in_backward();
  net.loss(batch(0)).backward();
  CHECK_THROWS_WITH_AS(net.loss(batch(1)).backward(), doctest::Contains("was updated in this backward pass already"),
                       Error);
  optimizer.zero_grad();
  optimizer.step_in_backward();
  net.loss(batch(1)).backward();

  optimizer.step_in_backward();
  const auto part = [&](const torch::Tensor& x) {
    return vernier::checkpoint([&](const torch::Tensor& y) { return torch::tanh(net.linears[0](y)); }, x);
  };
  const auto twice = part(part(batch(2).requires_grad_())).sum();
  CHECK_THROWS_WITH_AS(twice.backward(), doctest::Contains("call step() after it"), Error);
}

TEST_CASE("optim in backward: parts that are computed again train with the same bits") {
  Net net, plain;
  vernier::AdamW optimizer(net.parameters(), {.lr = 0.1}), reference(plain.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    optimizer.step_in_backward();
    auto x = batch(step).requires_grad_();
    for (auto& linear : net.linears) {
      x = vernier::checkpoint([&](const torch::Tensor& y) { return torch::tanh(linear(y)); }, x);
    }
    x.square().mean().backward();
    plain.loss(batch(step)).backward();
    reference.step();
    reference.zero_grad();
    for (std::size_t i = 0; i < net.parameters().size(); ++i) {
      CHECK(::same_bits(net.parameters()[i].detach(), plain.parameters()[i].detach()));
    }
  }
}

TEST_CASE("optim in backward: an optimizer that is gone updates nothing, and one that follows does") {
  Net net;
  {
    vernier::SGD optimizer(net.parameters(), {.lr = 0.1});
    optimizer.step_in_backward();
  }
  net.loss(batch(0)).backward();
  CHECK(net.linears[0]->weight.grad().defined());
  auto first = std::make_unique<vernier::SGD>(net.parameters(), vernier::SGDOptions{.lr = 0.1});
  first->step_in_backward();
  vernier::SGD second(net.parameters(), {.lr = 0.1});
  first->step_in_backward(false);
  second.step_in_backward();
  first.reset();
  second.zero_grad();
  net.loss(batch(1)).backward();
  CHECK(second.gradients().empty());
}

TEST_CASE("optim in backward: of two optimizers one at a time has a parameter, and a hook of the user stays") {
  Net net;
  vernier::SGD first(net.parameters(), {.lr = 0.1}), second(net.parameters(), {.lr = 0.1});
  const auto trains = [&](vernier::SGD& optimizer) {
    optimizer.step_in_backward();
    const auto before = net.linears[0]->weight.detach().clone();
    net.loss(batch(0)).backward();
    return optimizer.gradients().empty() && !net.linears[0]->weight.equal(before);
  };
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(trains(first));
    CHECK_THROWS_WITH_AS(second.step_in_backward(), doctest::Contains("another optimizer does it"), Error);
    CHECK(trains(first));
    first.step_in_backward(false);
    CHECK(trains(second));
    CHECK_THROWS_WITH_AS(first.step_in_backward(), doctest::Contains("another optimizer does it"), Error);
    second.step_in_backward(false);
  }
  struct Counts final : torch::autograd::PostAccumulateGradHook {
    explicit Counts(int& to) : calls(to) {}
    void operator()(const torch::Tensor&) override { ++calls; }
    int& calls;
  };
  int calls = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(net.linears[1]->weight, std::make_unique<Counts>(calls));
  CHECK_THROWS_WITH_AS(first.step_in_backward(), doctest::Contains("it has a hook of its own after its gradient"),
                       Error);
  net.loss(batch(0)).backward();
  CHECK(calls == 1);
  CHECK(net.linears[0]->weight.grad().defined());
}

}  // namespace optim_in_backward_test
