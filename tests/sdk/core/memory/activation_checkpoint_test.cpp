#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/autocast.h>
#include <vernier/layers.h>
#include <vernier/memory_ledger.h>

#include <optional>
#include <random>
#include <sstream>

#include "thrown.h"

namespace activation_checkpoint_test {

using torch::Tensor;
using vernier::checkpoint;
using vernier::Keep;

namespace {

// Blocks with dropout, some of which are computed again; 0: none, 1: all, 2: every second one.
struct Net final : torch::nn::Module {
  explicit Net(std::int64_t width = 16, int blocks = 4) {
    for (int i = 0; i < blocks; ++i) {
      in.push_back(register_module("in" + std::to_string(i), torch::nn::Linear(width, 4 * width)));
      out.push_back(register_module("out" + std::to_string(i), torch::nn::Linear(4 * width, width)));
    }
  }
  Tensor block(std::size_t i, const Tensor& x) {
    return x +
           at::dropout(at::linear(at::gelu(at::linear(x, in[i]->weight, in[i]->bias)), out[i]->weight, out[i]->bias),
                       0.2, is_training());
  }
  Tensor forward(Tensor x, int every, Keep keep = Keep::inputs) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto one = [this, i](const Tensor& y) { return block(i, y); };
      x = every > 0 && (i + 1) % static_cast<std::size_t>(every) == 0 ? checkpoint(keep, one, x) : one(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> in, out;
};

struct Result {
  Tensor loss, input_gradient, next_random;
  std::vector<Tensor> gradients;
};

bool operator==(const Result& a, const Result& b) {
  return a.loss.equal(b.loss) && a.input_gradient.equal(b.input_gradient) && a.next_random.equal(b.next_random) &&
         std::equal(a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
                    [](const auto& x, const auto& y) { return x.equal(y); });
}

template <class Forward>
Result result_of(torch::nn::Module& net, const Forward& forward, std::int64_t width = 16) {
  net.zero_grad();
  torch::manual_seed(7);
  auto x = torch::randn({6, width}).requires_grad_();
  const auto loss = forward(x).to(torch::kFloat32).square().mean();
  loss.backward();
  Result result{loss.detach(), x.grad(), torch::rand({4}), {}};
  for (const auto& parameter : net.parameters()) result.gradients.push_back(parameter.grad().clone());
  return result;
}

// Doubles every linear layer's output.
struct Doubling final : vernier::Interceptor {
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    calls += operation.name() == "linear" ? 1 : 0;
    auto results = operation.proceed(std::move(arguments));
    if (operation.name() == "linear") results[0] = results[0].toTensor() * 2;
    return results;
  }
  void end_of_recomputation() override { ++ends; }
  int calls = 0, ends = 0;
};

}  // namespace

TEST_CASE("checkpoint: loss and gradients have the bits that they had, with dropout, in any precision") {
  torch::manual_seed(1);
  Net net;
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    const auto run = [&](int every, Keep keep) {
      return result_of(net, [&](const Tensor& x) {
        const vernier::Autocast autocast(torch::kCPU, dtype, dtype != torch::kFloat32);
        return net.forward(x, every, keep);
      });
    };
    const auto plain = run(0, Keep::inputs);
    CHECK(plain.gradients[0].ne(0).any().item<bool>());
    for (const int every : {1, 2, 3}) {
      CAPTURE(every);
      CHECK(run(every, Keep::inputs) == plain);
      CHECK(run(every, Keep::matmuls) == plain);
    }
  }
}

TEST_CASE("checkpoint: a weight whose copy autocast keeps is learnt inside and outside") {
  torch::manual_seed(1);
  torch::nn::Linear layer(16, 16);
  const auto run = [&](bool again) {
    return result_of(*layer, [&](const Tensor& x) {
      const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
      const auto twice = [&](const Tensor& y) { return at::linear(y, layer->weight, layer->bias); };
      return twice(again ? checkpoint(twice, x) : twice(x));
    });
  };
  const auto plain = run(false), recomputed = run(true);
  CHECK(recomputed.loss.equal(plain.loss));
  // Autocast adds the two up in bfloat16, the recomputation in float32.
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    CHECK(torch::allclose(recomputed.gradients[i], plain.gradients[i], 1e-2, 1e-5));
  }
}

TEST_CASE("checkpoint: an input that is used several times in 16 bits has its gradients added up as without") {
  torch::manual_seed(1);
  torch::nn::Linear layer(8, 8);
  const auto run = [&](bool again) {
    return result_of(
        *layer,
        [&](const Tensor& x) {
          const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
          const auto thrice = [&](const Tensor& y) { return at::matmul(at::matmul(y, y.t()), y); };
          const auto input = at::linear(x, layer->weight, layer->bias).to(torch::kFloat32);
          return again ? checkpoint(thrice, input) : thrice(input);
        },
        8);
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("checkpoint: nested, and of many at once") {
  torch::manual_seed(1);
  Net net;
  const auto plain = result_of(net, [&](const Tensor& x) { return net.forward(x, 0); });
  const auto nested = result_of(
      net, [&](const Tensor& x) { return checkpoint([&](const Tensor& y) { return net.forward(y, 1); }, x); });
  CHECK(nested == plain);
  Net deep(16, 200);
  const auto all = result_of(deep, [&](const Tensor& x) { return deep.forward(x, 0); });
  CHECK(result_of(deep, [&](const Tensor& x) { return deep.forward(x, 1); }) == all);
}

TEST_CASE("checkpoint: several inputs and outputs, undefined ones, integers, an input handed on") {
  const auto function = [](const Tensor& a, const Tensor& index, const Tensor& none, const Tensor& b) {
    CHECK_FALSE(none.defined());
    return std::vector<Tensor>{a * b, a, index + 1, b.view({-1}), torch::Tensor()};
  };
  const auto run = [&](bool again) {
    auto a = torch::arange(6, torch::kFloat32).reshape({2, 3}).requires_grad_();
    auto b = torch::ones({2, 3}).mul_(3).requires_grad_();
    const auto index = torch::tensor({1, 2});
    const auto results = again ? checkpoint(function, a, index, Tensor(), b) : function(a, index, Tensor(), b);
    CHECK(results[2].equal(index + 1));
    CHECK_FALSE(results[2].requires_grad());
    CHECK_FALSE(results[4].defined());
    (results[0].sum() * 2 + results[1].square().sum() + results[3][0]).backward();
    return std::pair(a.grad(), b.grad());
  };
  const auto plain = run(false), again = run(true);
  CHECK(again.first.equal(plain.first));
  CHECK(again.second.equal(plain.second));
}

TEST_CASE("checkpoint: without gradients it is the function, called once") {
  int calls = 0;
  const auto count = [&](const Tensor& x) { return ++calls, x * 2; };
  {
    const torch::NoGradGuard no_grad;
    CHECK(checkpoint(count, torch::ones({2})).equal(torch::full({2}, 2.0F)));
  }
  CHECK(calls == 1);
  auto x = torch::ones({2}).requires_grad_();
  const auto y = checkpoint(count, x);
  CHECK(calls == 2);
  y.sum().backward();
  CHECK(calls == 3);
}

namespace {

// A network of random operators, among them such as change a product in place, where autograd counts it and where not.
struct Program final : torch::nn::Module {
  static constexpr std::int64_t width = 8;
  explicit Program(std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 8; ++i) {
      const auto name = std::to_string(i);
      steps.push_back({static_cast<int>(random() % 12), register_parameter("w" + name, torch::randn({width, width})),
                       register_parameter("b" + name, torch::randn({width})), random() % 2 == 0, random() % 2 == 0});
    }
  }

  struct Step {
    int op;
    Tensor weight, bias;
    bool nested, keeps;
  };

  static Tensor apply(const Step& step, const Tensor& x) {
    const auto& [op, w, b, nested, keeps] = step;
    switch (op) {
      case 0:
        return at::linear(x, w, b);
      case 1:
        return at::matmul(x, w).add_(b);  // to a view with a version of its own
      case 2:
        return at::linear(x.transpose(0, 1), w, b).transpose(0, 1);
      case 3:
        return at::linear(x, w, b).relu_();
      case 4:
        return at::gelu(at::linear(x, w));
      case 5:
        return at::dropout(x, 0.3, true);
      case 6:
        return attention(x, w, 0.0);
      case 7:
        return at::dropout(attention(x, w, 0.3), 0.3, true);
      case 8:
        return at::bmm(at::softmax(at::bmm(x, x.transpose(1, 2)), -1), x).mul_(b);
      case 9:
        return at::cdist(x, w, 2.0, /*compute_mode=*/1);  // a product that its kernel changes in place
      case 10:
        return at::conv1d(x.transpose(1, 2), w.unsqueeze(-1), b).transpose(1, 2);
      default:
        return x + at::matmul(x.mean(0), w);
    }
  }

  static Tensor attention(const Tensor& x, const Tensor& w, double dropout) {
    const auto heads = [&](const Tensor& y) { return y.view({y.size(0), y.size(1), 2, width / 2}).transpose(1, 2); };
    const auto y = at::scaled_dot_product_attention(heads(at::linear(x, w)), heads(x.contiguous()),
                                                    heads(x.contiguous()), {}, dropout, true);
    return y.transpose(1, 2).reshape(x.sizes());
  }

  // recomputed: steps that are checkpoints within one.
  Tensor forward(Tensor x, bool recomputed) const {
    for (const auto& step : steps) {
      const auto one = [&step](const Tensor& y) { return at::layer_norm(apply(step, y).to(torch::kFloat32), {width}); };
      x = recomputed && step.nested ? checkpoint(step.keeps ? Keep::matmuls : Keep::inputs, one, x) : one(x);
    }
    return x;
  }

  std::string text() const {
    std::ostringstream out;
    for (const auto& step : steps) out << step.op << (step.nested ? step.keeps ? "m " : "i " : " ");
    return out.str();
  }
  std::vector<Step> steps;
};

}  // namespace

TEST_CASE("checkpoint: random networks have their bits, whatever is kept, nested, and changed in place") {
  at::set_num_threads(1);  // for what is small
  torch::manual_seed(3);
  const auto x = torch::randn({3, 5, Program::width});
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Program program(seed);
    const auto network = program.text();
    CAPTURE(network);
    const bool bf16 = seed % 3 == 0;
    const auto run = [&](const std::optional<Keep>& keep, bool nested) {
      program.zero_grad();
      torch::manual_seed(seed);
      auto input = x.clone().requires_grad_();
      Tensor y;
      {
        const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16, bf16);
        const auto forward = [&](const Tensor& z) { return program.forward(z, nested); };
        y = keep ? checkpoint(*keep, forward, input) : forward(input);
        if (keep && seed % 2 == 0) y.mul_(2);  // after its checkpoint, which may have kept it
        if (!keep && seed % 2 == 0) y = y * 2;
      }
      y.square().mean().backward();
      Result result{y.detach(), input.grad(), torch::rand({4}), {}};
      for (const auto& parameter : program.parameters()) {
        result.gradients.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros({1}));
      }
      return result;
    };
    const auto plain = run(std::nullopt, false);
    CHECK(run(std::nullopt, true) == plain);
    for (const auto keep : {Keep::inputs, Keep::matmuls}) {
      CHECK(run(keep, false) == plain);
      CHECK(run(keep, true) == plain);
    }
  }
}

TEST_CASE("checkpoint: products that are kept are not computed again") {
  torch::manual_seed(1);
  const auto input = torch::randn({4, 8});
  auto weight = torch::randn({8, 8}).requires_grad_();
  const auto function = [&](const Tensor& x) { return at::gelu(at::linear(x, weight)); };
  // The gradient of the weight is of x and of what the product was, not of the weight itself.
  const auto gradient = [&](Keep keep, bool changed) {
    weight.mutable_grad().reset();
    const auto y = checkpoint(keep, function, input).sum();
    if (changed) weight.data().mul_(2);  // .data() counts no version
    y.backward();
    if (changed) weight.data().div_(2);
    return weight.grad();
  };
  const auto plain = gradient(Keep::inputs, false);
  CHECK(gradient(Keep::matmuls, false).equal(plain));
  CHECK(gradient(Keep::matmuls, true).equal(plain));
  CHECK_FALSE(gradient(Keep::inputs, true).equal(plain));
}

TEST_CASE("checkpoint: a product that is handed on and changed there is computed again") {
  torch::manual_seed(1);
  const auto weight = torch::randn({8, 8}).requires_grad_();
  // With two dimensions, autograd keeps the product itself; with three, a view that has a version of its own.
  for (const auto& input : {torch::randn({4, 8}), torch::randn({2, 4, 8})}) {
    const auto gradient = [&](const std::optional<Keep>& keep) {
      torch::Tensor(weight).mutable_grad().reset();
      const auto function = [&](const Tensor& x) {
        const auto y = at::matmul(x, weight);
        return std::vector<Tensor>{y, at::gelu(y)};
      };
      auto results = keep ? checkpoint(*keep, function, input) : function(input);
      if (keep)
        results[0].mul_(2);
      else
        results[0] = results[0] * 2;
      (results[0] * results[1]).sum().backward();
      return weight.grad();
    };
    CHECK(gradient(Keep::inputs).equal(gradient(std::nullopt)));
    CHECK(gradient(Keep::matmuls).equal(gradient(std::nullopt)));
  }
}

TEST_CASE("checkpoint: with products kept, backward may come twice") {
  auto weight = torch::randn({8, 8}).requires_grad_();
  const auto x = torch::randn({4, 8});
  const auto function = [&](const Tensor& z) { return at::gelu(at::linear(z, weight)); };
  const auto y = checkpoint(Keep::matmuls, function, x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = weight.grad().clone();
  y.backward();
  CHECK(weight.grad().equal(once * 2));
  CHECK(thrown_by([&] { y.backward(); }).kind != 0);
}

TEST_CASE("checkpoint: where the second call takes another way, the rest of it is computed") {
  auto weight = torch::randn({8, 8}).requires_grad_();
  const auto x = torch::randn({4, 8});
  const auto gradient = [&](bool again) {
    weight.mutable_grad().reset();
    int calls = 0;
    const auto function = [&](const Tensor& z) {
      auto y = at::linear(z, weight);
      if (again && ++calls == 2)
        y = at::bmm(y.unsqueeze(0), weight.unsqueeze(0)).squeeze(0);
      else
        y = at::mm(y, weight);
      return at::mm(at::mm(y, weight.t()).tanh(), weight);
    };
    (again ? checkpoint(Keep::matmuls, function, x) : function(x)).sum().backward();
    return weight.grad();
  };
  CHECK(torch::allclose(gradient(true), gradient(false), 1e-4, 1e-4));
}

TEST_CASE(
    "checkpoint: exceptions of either call pass, and leave autocast, random numbers and interceptors as they were") {
  int call = 0, throw_in = 1;
  auto layer = torch::nn::Linear(4, 4);
  vernier::Layers layers(*layer);
  Doubling doubling;
  const auto run = [&] {
    call = 0;
    auto x = torch::ones({2, 4}).requires_grad_();
    Tensor y;
    {
      const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
      const vernier::Intercept intercept(layers, doubling);
      y = checkpoint(
          [&](const Tensor& z) {
            const auto noise = torch::rand({2, 4});
            if (++call == throw_in) throw std::runtime_error("boom");
            return layer->forward(z + noise);
          },
          x);
    }
    y.sum().backward();
  };
  for (throw_in = 1; throw_in <= 2; ++throw_in) {
    CHECK(says(thrown_by(run).text, "boom"));
    CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
    const int before = doubling.calls;
    layer->forward(torch::ones({1, 4}));
    CHECK(doubling.calls == before);
    CHECK(torch::GradMode::is_enabled());
  }
  throw_in = 0;
  CHECK(thrown_by(run) == Thrown{});
}

TEST_CASE("checkpoint: after an exception in either call, products are computed again") {
  const auto weight = torch::randn({8, 8}).requires_grad_();
  const auto square = at::mm(weight, weight);
  for (const int throw_in : {1, 2}) {
    int call = 0;
    const auto run = [&] {
      const auto function = [&](const Tensor& x) {
        const auto y = at::mm(x, weight);
        if (++call == throw_in) throw std::runtime_error("boom");
        return at::mm(y, weight);
      };
      checkpoint(Keep::matmuls, function, torch::randn({8, 8})).sum().backward();
    };
    CHECK(says(thrown_by(run).text, "boom"));
    CHECK(call == throw_in);
    CHECK(at::mm(weight, weight).equal(square));
  }
}

TEST_CASE("checkpoint: interceptors see the second forward too, and are called when it ends") {
  torch::manual_seed(1);
  Net net;
  vernier::Layers layers(net);
  Doubling plain_calls, again_calls;
  const auto run = [&](Doubling& doubling, int every) {
    return result_of(net, [&](const Tensor& x) {
      const vernier::Intercept intercept(layers, doubling);
      return net.forward(x, every);
    });
  };
  const auto plain = run(plain_calls, 0), again = run(again_calls, 1);
  CHECK(again == plain);
  CHECK(plain_calls.calls == 8);
  CHECK(again_calls.calls == 16);
  CHECK(again_calls.ends == 4);
}

TEST_CASE("checkpoint: what it cannot do is refused") {
  const auto square = [](const Tensor& x) { return x.square(); };
  auto x = torch::ones({2}).requires_grad_();
  CHECK(says(thrown_by([&] { torch::autograd::grad({checkpoint(square, x).sum()}, {x}); }).text, "backward() only"));
  CHECK(says(thrown_by([&] { checkpoint(square, x).sum().backward({}, true, /*create_graph=*/true); }).text,
             "differentiable once"));
  const auto y = checkpoint(square, x).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  CHECK(x.grad().equal(torch::full({2}, 4.0F)));
  CHECK(thrown_by([&] { y.backward(); }).kind != 0);

  auto changed = torch::ones({2});
  auto scale = torch::ones({2}).requires_grad_();
  const auto z = checkpoint([](const Tensor& a, const Tensor& b) { return a * b; }, changed, scale).sum();
  changed.add_(1);
  CHECK(says(thrown_by([&] { z.backward(); }).text, "modified by an inplace operation"));
}

TEST_CASE("checkpoint: of all blocks only their inputs and products are kept, and of one what it needs") {
  constexpr std::int64_t width = 64, rows = 512;
  Net net(width, 8);
  const auto input = torch::randn({rows, width});
  const auto activations = [&](int every, Keep keep = Keep::inputs) {
    vernier::MemoryLedger ledger(net);
    net.zero_grad();
    ledger.begin_forward();
    const auto loss = net.forward(input, every, keep).sum();
    ledger.begin_backward();
    loss.backward();
    const auto use = ledger.stop();
    return std::pair(use.bytes("activations"), use.peak);
  };
  activations(0);  // gradients are there from now on
  const auto plain = activations(0), recomputed = activations(1);
  constexpr std::int64_t boundary = rows * width * 4;
  const auto block = plain.first / 8;
  CAPTURE(plain.first);
  CAPTURE(plain.second);
  CAPTURE(recomputed.first);
  CAPTURE(recomputed.second);
  CHECK(plain.second - recomputed.second > plain.first - recomputed.first - 2 * block);

  // A block keeps its input (for the first block, the batch), the state of the generator, the output of `in`, which is
  // four times as wide, and the output of `out`.
  const auto products = activations(1, Keep::matmuls);
  const auto generator = at::detail::getDefaultCPUGenerator().get_state().numel();
  CAPTURE(products.second);
  CHECK(recomputed.first == 7 * boundary + 8 * generator);
  CHECK(products.first == recomputed.first + 8 * (4 + 1) * boundary);
  CHECK(products.second < plain.second);
  CHECK(products.second - recomputed.second <= products.first - recomputed.first);  // the block in work has it in both
}

}  // namespace activation_checkpoint_test
