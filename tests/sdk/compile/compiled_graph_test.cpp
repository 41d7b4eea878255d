// Compiled programs of forward and backward: what they compute is what LibTorch computes in float64, up to their bound.
#include <doctest/doctest.h>
#include <torch/nn/functional.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/fused_kernels.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device_graph.h"
#include "log_lines.h"
#include "temporary_folder.h"

namespace compiled_graph_test {

namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// A variable of the environment, and what it was.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  ~Variable() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

// The loss of weights and inputs.
using Loss = std::function<Tensor(const Tensors& weights, const Tensors& inputs)>;

struct Network {
  std::string name;
  std::function<Tensors()> weights, inputs;
  Loss loss;
};

Tensors in_float64(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) {
    all.push_back(tensor.is_floating_point() ? tensor.detach().to(torch::kFloat64) : tensor.clone());
  }
  return all;
}

// The loss and the gradients, by autograd.
Tensors by_operators(Tensors weights, const Tensors& inputs, const Loss& loss) {
  for (auto& weight : weights) weight = weight.detach().clone().requires_grad_();
  Tensors all = {loss(weights, inputs)};
  all[0].backward(torch::ones_like(all[0]));
  for (const auto& weight : weights) all.push_back(weight.grad());
  all[0] = all[0].detach();
  return all;
}

// A pass as the runner records it.
struct Pass {
  Pass(const Network& network, const vernier::MakeDeviceGraph& make)
      : weights(network.weights()), inputs(network.inputs()), forward(make()), backward(make()) {
    for (const auto& weight : weights) weight.requires_grad_();
    Tensor loss;
    forward->capture([&] { loss = network.loss(weights, inputs); });
    const auto slope = torch::ones_like(loss.detach());
    backward->capture([&] { loss.backward(slope); });
    results = {loss.detach()};
    for (const auto& weight : weights) results.push_back(weight.grad());
    kept = {slope};
  }
  std::vector<double> bounds() { return forward->bounds(*backward, results); }
  void replay() {
    forward->replay();
    backward->replay();
  }
  Tensors weights, inputs, results, kept;
  std::unique_ptr<vernier::DeviceGraph> forward, backward;
};

Tensor mlp(const Tensors& w, const Tensors& in) {
  const auto hidden = at::relu(at::linear(in[0], w[0], w[1]));
  return at::cross_entropy_loss(at::linear(hidden, w[2], w[3]), in[1]);
}

// Standardised numbers in float64, embeddings, layer normalisation and a squared error, as task/tabular has them.
Tensor table(const Tensors& w, const Tensors& in) {
  const auto numbers = (in[0].to(torch::kFloat64) - 0.5) / 2.0;
  auto x = at::cat({numbers, at::embedding(w[0], in[1].select(1, 0)), at::embedding(w[1], in[1].select(1, 1))}, 1)
               .to(w[2].scalar_type());
  x = at::relu(at::linear(x, w[2], w[3]));
  x = x + at::linear(at::layer_norm(x, {x.size(1)}, w[4], w[5]), w[6], {});
  return at::mse_loss(at::linear(x, w[7], w[8]).squeeze(1).to(torch::kFloat64), in[2].to(torch::kFloat64));
}

Tensor functions(const Tensors& w, const Tensors& in) {
  const auto a = in[0] * w[0], b = at::tanh(a) + at::sigmoid(a * 3) * 2 - at::exp(-a * a);
  return (b / (a * a + 1)).pow(2).mean() + b.sum({0}).mean() + b.t().contiguous().mean({0}).pow(3).sum() +
         at::tanh(a * 1e-3).sum();
}

Tensor more_functions(const Tensors& w, const Tensors& in) {
  const auto a = in[0] * w[0];
  const auto parts = at::stack({at::silu(a), at::gelu(a, "tanh"), a.slice(1, 2, 9).sum(1).unsqueeze(1) * w[0]}, 1);
  return (parts.select(1, 0) * parts.select(1, 1) + parts.select(1, 2)).pow(2).mean();
}

// Large products of matrices whose rows overlap: windows of a sequence, and the expanded gradient of a sum.
Tensor overlapping(const Tensors& w, const Tensors& in) {
  return in[0].unfold(0, 128, 1).mm(w[0]).sum(0).pow(2).mean();
}

// A step of an LSTM, in place as LibTorch's is.
Tensor recurrent(const Tensors& w, const Tensors& in) {
  auto h = in[1], c = in[1] * 0.5;
  for (int step = 0; step < 3; ++step) {
    const auto gates = at::linear(in[0].select(0, step), w[0], w[1]) + at::linear(h, w[2], {});
    const auto all = gates.unsafe_chunk(4, 1);
    c = all[1].sigmoid() * c + all[0].sigmoid() * all[2].tanh();
    h = all[3].sigmoid() * c.tanh();
  }
  return at::mse_loss(h, in[2]);
}

// Layers of oneDNN's LSTM, the gradient of whose inputs and whose last state are used.
Tensor lstm(const Tensors& w, const Tensors& in) {
  const auto x = in[0] * w[0], state = in[1] * 0.5;
  const std::vector<Tensor> weights(w.begin() + 1, w.end());
  const auto layers = static_cast<std::int64_t>(weights.size() / 4);
  const auto [y, h, c] = at::lstm(x, {state, in[1]}, weights, true, layers, 0, true, false, /*batch_first=*/true);
  return y.select(1, -1).pow(2).mean() + (y * y).mean() + h.pow(2).sum() * 0.1 + c.pow(2).sum() * 0.1;
}

Tensor lstm_without_biases(const Tensors& w, const Tensors& in) {
  const auto x = in[0] * w[0];
  const auto [y, h, c] = at::lstm(x, {in[1], in[1]}, {w[1], w[2]}, false, 1, 0, true, false, /*batch_first=*/true);
  return (y * y).mean() + h.pow(2).sum() * 0.1;
}

Tensors randn(const std::vector<std::vector<std::int64_t>>& shapes, double scale = 0.3) {
  Tensors all;
  for (const auto& shape : shapes) all.push_back(torch::randn(shape).mul_(scale));
  return all;
}

std::vector<Network> networks() {
  std::vector<Network> all;
  for (const auto& [batch, in, hidden, classes] : std::vector<std::array<std::int64_t, 4>>{
           {8, 32, 32, 10}, {1, 3, 5, 2}, {7, 17, 33, 19}, {33, 64, 48, 16}, {16, 40, 8, 100}, {128, 96, 120, 9}}) {
    all.push_back({c10::str("mlp ", batch, " ", in, " ", hidden, " ", classes),
                   [=] {
                     return randn({{hidden, in}, {hidden}, {classes, hidden}, {classes}});
                   },
                   [=] {
                     return Tensors{torch::randn({batch, in}), torch::randint(classes, {batch}, torch::kInt64)};
                   },
                   mlp});
  }
  all.push_back({"table",
                 [] {
                   return randn({{5, 3}, {4, 2}, {24, 9}, {24}, {24}, {24}, {24, 24}, {1, 24}, {1}});
                 },
                 [] {
                   return Tensors{torch::randn({12, 4}), torch::randint(4, {12, 2}, torch::kInt64), torch::randn({12})};
                 },
                 table});
  all.push_back({"functions", [] { return randn({{11}}, 2); }, [] { return randn({{6, 11}}, 1); }, functions});
  all.push_back({"more functions", [] { return randn({{11}}, 2); },
                 [] {
                   return randn({{6, 11}}, 1);
                 },
                 more_functions});
  all.push_back({"lstm without biases",
                 [] {
                   return randn({{4}, {28, 4}, {28, 7}});
                 },
                 [] {
                   return randn({{5, 3, 4}, {1, 5, 7}}, 1);
                 },
                 lstm_without_biases});
  all.push_back({"overlapping", [] { return randn({{128, 64}}, 0.1); }, [] { return randn({{383}}, 1); }, overlapping});
  all.push_back({"recurrent",
                 [] {
                   return randn({{32, 5}, {32}, {32, 8}});
                 },
                 [] {
                   return randn({{3, 4, 5}, {4, 8}, {4, 8}}, 1);
                 },
                 recurrent});
  for (const auto& [batch, steps, in, width] :
       std::vector<std::array<std::int64_t, 4>>{{5, 3, 4, 7}, {13, 2, 3, 40}, {1, 1, 1, 16}}) {
    all.push_back({c10::str("lstm ", batch, " ", steps, " ", in, " ", width),
                   [=] {
                     return randn({{in},
                                   {4 * width, in},
                                   {4 * width, width},
                                   {4 * width},
                                   {4 * width},
                                   {4 * width, width},
                                   {4 * width, width},
                                   {4 * width},
                                   {4 * width}});
                   },
                   [=] {
                     return randn({{batch, steps, in}, {2, batch, width}}, 1);
                   },
                   lstm});
  }
  return all;
}

}  // namespace

TEST_CASE("compiled graph: loss and gradients are those of LibTorch in float64") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  vernier::use_fused_kernels(true);
  const auto make = vernier::compiled_graphs();
  torch::manual_seed(5);
  for (const auto& network : networks()) {
    CAPTURE(network.name);
    const LogLines log;
    Pass pass(network, make);
    const auto bounds = pass.bounds();
    REQUIRE(bounds.size() == pass.results.size());
    CHECK((LogLines::count("it calls LibTorch's") > 0) == (network.name == "overlapping"));
    for (int batch = 0; batch < 3; ++batch) {  // other numbers in the same memory
      CAPTURE(batch);
      const auto inputs = network.inputs(), weights = network.weights();
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < inputs.size(); ++i) pass.inputs[i].copy_(inputs[i]);
      for (std::size_t i = 0; i < weights.size(); ++i) pass.weights[i].copy_(weights[i]);
      for (const auto& result : pass.results) result.fill_(std::nan(""));
      const auto close = pass.bounds();
      pass.replay();
      const torch::AutoGradMode grad(true);
      const auto exact = by_operators(in_float64(weights), in_float64(inputs), network.loss);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        const auto largest = exact[i].abs().max().item<double>();
        const auto error = (pass.results[i].to(torch::kFloat64) - exact[i]).abs().max().item<double>();
        CHECK(error <= close[i]);
        CHECK(close[i] <= 1e-4 * largest + 1e-9);  // a bound that finds what is wrong
      }
    }
  }
  vernier::use_fused_kernels(false);
}

TEST_CASE("compiled graph: a small loss is within its bound") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  vernier::use_fused_kernels(true);
  torch::manual_seed(6);
  const Network network{"",
                        [] {
                          return randn({{32, 8}, {32}, {50, 32}, {50}});
                        },
                        [] {
                          return Tensors{torch::randn({1, 8}), torch::ones({1}, torch::kInt64)};
                        },
                        mlp};
  Pass pass(network, vernier::compiled_graphs());
  pass.bounds();
  for (int batch = 0; batch < 100; ++batch) {
    CAPTURE(batch);
    {
      const torch::NoGradGuard no_grad;
      pass.inputs[0].normal_();
      pass.weights[3].select(0, 1).fill_(8 + 0.05 * batch);
    }
    const auto close = pass.bounds();
    pass.replay();
    const auto loss = by_operators(pass.weights, pass.inputs, network.loss)[0];
    CHECK(loss.item<double>() < 0.2);
    CHECK(std::abs(loss.item<double>() - pass.results[0].item<double>()) <= close[0]);
    CHECK(close[0] < 4e-6);
  }
  vernier::use_fused_kernels(false);
}

TEST_CASE("compiled graph: exp is that of float64 to two units of the last place, up to its ends") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  vernier::use_fused_kernels(true);
  using Limits = std::numeric_limits<float>;
  const auto ends =
      torch::tensor({88.37626f, 88.37627f, 88.72f, 88.7228317f, 88.7228394f, -87.3f, -87.3365402f, -87.3365479f, -0.0f,
                     0.0f, 1e38f, -1e38f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()});
  const auto x = at::cat({torch::linspace(-104, 89, 20000), ends});
  const Network network{"", [&] { return Tensors{torch::zeros_like(x)}; }, [] { return Tensors(); },
                        [](const Tensors& w, const Tensors&) { return at::exp(w[0]).sum({0}); }};
  Pass pass(network, vernier::compiled_graphs());
  pass.bounds();
  const torch::NoGradGuard no_grad;
  pass.weights[0].copy_(x);
  pass.replay();
  const auto y = pass.results[1].to(torch::kFloat64);  // the gradient of the sum
  auto exact = x.to(torch::kFloat64).exp();
  exact.masked_fill_(exact.lt(Limits::min()), 0).masked_fill_(exact.gt(Limits::max()), Limits::infinity());
  const auto is_right = (y - exact).abs().le(exact * 0x1p-22).logical_or(y.eq(exact));
  const auto is_wrong = is_right.logical_or(y.isnan().logical_and(exact.isnan())).logical_not();
  CHECK_MESSAGE(!is_wrong.any().item<bool>(), x.masked_select(is_wrong));
  vernier::use_fused_kernels(false);
}

TEST_CASE("compiled graph: a class that does not exist is refused as the operators refuse it") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  vernier::use_fused_kernels(true);
  Pass pass(networks()[1], vernier::compiled_graphs());
  pass.bounds();
  pass.inputs[1].fill_(2);
  CHECK_THROWS_WITH_AS(pass.replay(), doctest::Contains("out of bounds"), c10::Error);
  vernier::use_fused_kernels(false);
}

TEST_CASE("compiled graph: what cannot be compiled is named") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  const auto weights = [] { return randn({{4, 4}}); };
  const auto inputs = [] { return randn({{4, 4}}); };
  const std::vector<std::pair<std::string, Loss>> cases = {
      {"aten::bernoulli_ draws random numbers",
       [](const Tensors& w, const Tensors& in) { return at::dropout(in[0].mm(w[0]), 0.5, true).sum(); }},
      {"computes in BFloat16",
       [](const Tensors& w, const Tensors& in) {
         return in[0].to(torch::kBFloat16).mm(w[0].to(torch::kBFloat16)).sum();
       }},
  };
  for (const auto& [reason, loss] : cases) {
    CAPTURE(reason);
    Pass pass({"", weights, inputs, loss}, vernier::compiled_graphs());
    CHECK_THROWS_WITH_AS(pass.bounds(), doctest::Contains(reason.c_str()), vernier::Error);
  }
  // A rule of its own is not needed: LibTorch's operator is called.
  const LogLines log;
  const Network network{"", weights, inputs,
                        [](const Tensors& w, const Tensors& in) { return at::erf(in[0].mm(w[0])).cumsum(1).sum(); }};
  Pass pass(network, vernier::compiled_graphs());
  pass.bounds();
  pass.replay();
  CHECK(LogLines::count("it calls LibTorch's aten::") == 1);
  const auto exact = by_operators(in_float64(pass.weights), in_float64(pass.inputs), network.loss);
  for (std::size_t i = 0; i < exact.size(); ++i)
    CHECK(pass.results[i].to(torch::kFloat64).allclose(exact[i], 1e-5, 1e-5));
}

TEST_CASE("compiled graph: trouble with the compiler and the cache") {
  const TemporaryFolder folder;
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  const auto network = networks()[1];
  const auto make = vernier::compiled_graphs();
  const auto bounds = [&] {
    Pass pass(network, make);
    pass.bounds();
    pass.replay();
    CHECK(pass.results[0].item<float>() > 0);
    return pass.forward->id();
  };
  {
    const Variable compiler("CXX", "/nowhere/c++");
    CHECK_THROWS_WITH_AS(bounds(), doctest::Contains("install g++, or set CXX"), vernier::Error);
  }
  {
    const auto broken = folder.write("broken", "#!/bin/sh\necho 'x.cpp:1: error: No space left on device'\nexit 1\n");
    std::filesystem::permissions(broken, std::filesystem::perms::owner_all);
    const Variable compiler("CXX", broken);
    CHECK_THROWS_WITH_AS(bounds(), doctest::Contains("has failed: error: No space left on device"), vernier::Error);
  }
  const auto id = bounds();
  const auto kept = folder.path() / "vernier/compiled" / (id + ".so");
  REQUIRE(std::filesystem::exists(kept));
  {  // another version of the compiler behind the same command
    const auto script = [&](const std::string& version) {
      const auto file =
          folder.write("c++", "#!/bin/sh\n[ \"$1\" = --version ] && echo " + version + " && exit\nexec c++ \"$@\"\n");
      std::filesystem::permissions(file, std::filesystem::perms::owner_all);
      const Variable compiler("CXX", file);
      return bounds();
    };
    const auto before = script("12.2.0");
    CHECK(script("12.2.0") == before);
    CHECK(script("12.3.0") != before);
  }
  {  // from the cache: the compiler is the same, and compiles nothing
    const auto size = std::filesystem::file_size(kept);
    std::filesystem::resize_file(kept, size / 2);
    CHECK(bounds() == id);
    CHECK(std::filesystem::file_size(kept) == size);
    const auto written = std::filesystem::last_write_time(kept);
    CHECK(bounds() == id);
    CHECK(std::filesystem::last_write_time(kept) == written);
  }
  // A folder is not used if others can write in it or can replace it.
  using std::filesystem::perm_options, std::filesystem::perms;
  for (const auto& shared : {kept.parent_path(), kept.parent_path().parent_path()}) {
    std::filesystem::permissions(shared, perms::others_write, perm_options::add);
    std::filesystem::remove(kept);
    CHECK(bounds() == id);
    CHECK_FALSE(std::filesystem::exists(kept));
    std::filesystem::permissions(shared, perms::others_write, perm_options::remove);
  }
  CHECK(bounds() == id);
  CHECK(std::filesystem::exists(kept));
}

}  // namespace compiled_graph_test
