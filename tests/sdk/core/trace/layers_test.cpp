#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/modules.h>
#include <vernier/autocast.h>
#include <vernier/linear_call.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>

namespace layers_test {

using vernier::Intercept;
using vernier::Layers;
using vernier::Operation;
using vernier::Values;

namespace {

// "linear(first)" for each operation, in order.
struct Recorder final : vernier::Interceptor {
  Values call(const Operation& operation, Values arguments) override {
    seen.push_back(std::string(operation.name()) + "(" + std::string(operation.layer()) + ")");
    return operation.proceed(std::move(arguments));
  }
  bool saw(const std::string& what) const { return std::find(seen.begin(), seen.end(), what) != seen.end(); }
  std::vector<std::string> seen;
};

// A user's own modules: linear layers of both kinds, a convolution, a norm, an embedding, a recurrent layer.
struct Model final : torch::nn::Module {
  Model() {
    embedding = register_module("embedding", torch::nn::Embedding(10, 8));
    conv = register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(8, 8).batch_first(true)));
    blocks = register_module(
        "blocks", torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::GELU(), torch::nn::Linear(8, 4)));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = embedding->forward(tokens);
    x = conv->forward(x.transpose(1, 2)).transpose(1, 2);
    x = std::get<0>(lstm->forward(norm->forward(x)));
    return blocks->forward(x);
  }
  torch::nn::Embedding embedding = nullptr;
  torch::nn::Conv1d conv = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::LSTM lstm = nullptr;
  torch::nn::Sequential blocks = nullptr;
};

std::vector<torch::Tensor> gradients(torch::nn::Module& model, const torch::Tensor& loss) {
  model.zero_grad();
  loss.backward();
  std::vector<torch::Tensor> all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

}  // namespace

TEST_CASE("layers: the layers of torch::nn's own modules are seen, whatever operator they come to") {
  torch::manual_seed(1);
  Model model;
  Layers layers(model);
  CHECK(layers.names() == std::vector<std::string>{"embedding", "conv", "norm", "lstm", "blocks.0", "blocks.2"});
  const auto tokens = torch::randint(10, {2, 5});
  Recorder recorder;
  const auto plain = model.forward(tokens);
  torch::Tensor seen;
  {
    const Intercept intercept(layers, recorder);
    seen = model.forward(tokens);
  }
  for (const char* what : {"embedding(embedding)", "conv1d(conv)", "layer_norm(norm)", "lstm(lstm)", "matmul(blocks.0)",
                           "gelu()", "matmul(blocks.2)"}) {
    CAPTURE(what);
    CHECK(recorder.saw(what));
  }
  const auto count = recorder.seen.size();
  const auto with = gradients(model, seen.square().sum());
  CHECK(recorder.seen.size() == count);  // nothing is seen after the guard
  CHECK(torch::equal(plain, seen));
  const auto without = gradients(model, plain.square().sum());
  for (std::size_t i = 0; i < with.size(); ++i) CHECK(torch::equal(with[i], without[i]));
}

TEST_CASE("layers: under autocast the model computes what it computes without a guard") {
  torch::manual_seed(2);
  Model model;
  Layers layers(model);
  const auto tokens = torch::randint(10, {2, 5});
  Recorder recorder;
  const auto run = [&](bool intercepted) {
    const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
    std::optional<Intercept> intercept;
    if (intercepted) intercept.emplace(layers, recorder);
    return model.forward(tokens);
  };
  const auto plain = run(false), seen = run(true);
  CHECK((plain.scalar_type() == torch::kBFloat16));
  CHECK(torch::equal(plain, seen));
}

TEST_CASE("layers: a scripted model's layers are seen by their names, in the order in which guards were made") {
  torch::jit::setGraphExecutorOptimize(false);
  torch::jit::Module part("Part");
  part.register_parameter("weight", torch::randn({3, 4}), false);
  part.define("def forward(self, x):\n    return torch.softmax(torch.linear(x, self.weight), -1)\n");
  torch::jit::Module whole("Whole");
  whole.register_module("head", part);
  whole.define("def forward(self, x):\n    return self.head.forward(x)\n");
  vernier::Tensors parameters;
  for (const auto& entry : whole.named_parameters()) parameters[entry.name] = entry.value;
  Layers layers(parameters);
  const auto x = torch::randn({2, 4});
  Recorder outer, inner;
  struct Double final : vernier::Interceptor {
    Values call(const Operation& operation, Values arguments) override {
      auto results = operation.proceed(std::move(arguments));
      if (operation.name() == "linear") results[0] = results[0].toTensor() * 2;
      return results;
    }
  } twice;
  torch::Tensor seen;
  {
    const Intercept first(layers, outer), second(layers, twice), third(layers, inner);
    seen = whole.forward({x}).toTensor();
  }
  CHECK(outer.seen == std::vector<std::string>{"linear(head)", "softmax()"});
  CHECK(inner.seen == outer.seen);
  const auto weight = parameters.at("head.weight");
  CHECK(torch::equal(seen, torch::softmax(at::linear(x, weight) * 2, -1)));
}

TEST_CASE("layers: an interceptor may answer itself, change arguments, or throw") {
  auto weight = torch::randn({3, 4}).requires_grad_();
  Layers layers(vernier::Tensors{{"a.weight", weight}});
  struct Own final : vernier::Interceptor {
    Values call(const Operation& operation, Values arguments) override {
      if (operation.name() == "relu") throw std::runtime_error("no relu");
      const auto call = vernier::linear_call(operation, arguments);
      return {call ? at::linear(call->input, call->weight * 3, call->bias) : torch::Tensor()};
    }
  } own;
  const auto x = torch::randn({2, 4}), bias = torch::randn({3});
  std::vector<torch::Tensor> without_bias;
  torch::Tensor with_bias;
  {
    const Intercept intercept(layers, own);
    without_bias = {at::linear(x, weight), torch::matmul(x, weight.t()), torch::mm(x, weight.t())};
    with_bias = torch::addmm(bias, x, weight.t());
    CHECK_THROWS_WITH(torch::relu(x), "no relu");
  }
  for (const auto& y : without_bias) CHECK(torch::allclose(y, at::linear(x, weight * 3)));
  CHECK(torch::allclose(with_bias, at::linear(x, weight * 3, bias)));
  CHECK(torch::equal(torch::relu(x), x.clamp_min(0)));  // the guard is gone with the exception too
}

TEST_CASE("layers: a weight that got new storage is still its layer's, and another's storage never is") {
  auto weight = torch::randn({3, 4});
  Layers layers(vernier::Tensors{{"a.weight", weight}});
  CHECK(layers.find(weight.t().narrow(0, 1, 2)) == 0);
  CHECK(layers.find(torch::randn({3, 4})) == -1);
  CHECK(layers.find(torch::Tensor()) == -1);
  weight.set_data(weight.to(torch::kBFloat16));
  Recorder recorder;
  {
    const Intercept intercept(layers, recorder);
    at::linear(torch::randn({2, 4}).to(torch::kBFloat16), weight);
  }
  CHECK(recorder.seen == std::vector<std::string>{"linear(a)"});
}

TEST_CASE("layers: guards may go in the order in which they came") {
  torch::nn::Linear model(2, 2);
  Layers layers(*model);
  Recorder recorders[2];
  std::optional<Intercept> first(std::in_place, layers, recorders[0]), second(std::in_place, layers, recorders[1]);
  first.reset();
  at::linear(torch::ones({1, 2}), model->weight, model->bias);
  CHECK(recorders[0].seen.empty());
  CHECK(recorders[1].seen.size() == 1);
  second.reset();
  at::linear(torch::ones({1, 2}), model->weight, model->bias);
  CHECK(recorders[1].seen.size() == 1);
}

TEST_CASE("layers: a guard holds for its own thread only") {
  auto weight = torch::randn({3, 4});
  Layers layers(vernier::Tensors{{"a.weight", weight}});
  Recorder recorder;
  const Intercept intercept(layers, recorder);
  std::thread([&] { at::linear(torch::randn({2, 4}), weight); }).join();
  CHECK(recorder.seen.empty());
}

TEST_CASE("layers: every operator that is listed exists") {
  const auto all = c10::Dispatcher::singleton().getAllOpNames();
  for (const auto& name : vernier::operators()) {
    CAPTURE(name);
    CHECK(std::any_of(all.begin(), all.end(), [&](const auto& known) {
      return known.name == "aten::" + name || known.name == "vernier::" + name;
    }));
  }
}

}  // namespace layers_test
