#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <vernier/error.h>
#include <vernier/fused_kernels.h>
#include <vernier/lab/random_rounding.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace random_rounding_test {

using Json = nlohmann::json;
using vernier::RandomRounding;

namespace {

torch::Tensor computed(const std::string& name, const std::vector<torch::Tensor>& x) {
  using Operator = torch::Tensor (*)(const std::vector<torch::Tensor>&);
  static const std::map<std::string, Operator> operators = {
      {"add", [](const auto& a) { return a[0] + a[1]; }},
      {"sub", [](const auto& a) { return a[0] - a[1]; }},
      {"mul", [](const auto& a) { return a[0] * a[1]; }},
      {"div", [](const auto& a) { return a[0] / a[1]; }},
      {"dot", [](const auto& a) { return at::dot(a[0], a[1]).unsqueeze(0); }},
      {"sum", [](const auto& a) { return a[0].sum(0, true); }},
      {"mean", [](const auto& a) { return a[0].mean(0, true); }},
      {"norm", [](const auto& a) { return a[0].norm().unsqueeze(0); }},
      {"max", [](const auto& a) { return a[0].max().unsqueeze(0); }},
      {"neg", [](const auto& a) { return -a[0]; }},
      {"softmax", [](const auto& a) { return a[0].softmax(0); }},
      {"logsumexp", [](const auto& a) { return a[0].logsumexp(0, true); }},
      {"sqrt", [](const auto& a) { return a[0].sqrt(); }},
      {"exp", [](const auto& a) { return a[0].exp(); }},
      {"log", [](const auto& a) { return a[0].log(); }},
      {"sin", [](const auto& a) { return a[0].sin(); }},
      {"cos", [](const auto& a) { return a[0].cos(); }}};
  return operators.at(name)(x);
}

// The result of an expression of tests/oracles/digits.py in float32.
double evaluated(const Json& expression) {
  std::vector<torch::Tensor> values;
  for (const auto& input : expression["inputs"]) {
    values.push_back(torch::tensor(input.get<std::vector<double>>(), torch::kFloat64).to(torch::kFloat32));
  }
  for (const auto& step : expression["steps"]) {
    const auto name = step[0].get<std::string>();
    if (name == "select") {
      const auto index = step[2].get<std::int64_t>();
      values.push_back(values[step[1].get<std::size_t>()].slice(0, index, index + 1));
      continue;
    }
    std::vector<torch::Tensor> operands;
    for (std::size_t i = 1; i < step.size(); ++i) operands.push_back(values[step[i].get<std::size_t>()]);
    values.push_back(computed(name, operands));
  }
  return values.back().item<double>();
}

struct Step {
  torch::Tensor loss;
  std::vector<torch::Tensor> gradients;
};

// A network with the usual operators, in forward and backward, by one seed.
Step step_of(std::uint64_t seed, torch::ScalarType dtype = torch::kFloat32) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                              torch::nn::BatchNorm2d(8), torch::nn::GELU(), torch::nn::Flatten(),
                              torch::nn::Linear(8 * 36, 32), torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
                              torch::nn::Dropout(0.2), torch::nn::Linear(32, 5));
  model->to(dtype);
  const auto input = torch::randn({16, 3, 6, 6}).to(dtype), target = torch::randint(0, 5, {16});
  const RandomRounding rounding(seed);
  Step step;
  step.loss = torch::nn::functional::cross_entropy(model->forward(input), target);
  step.loss.backward();
  CHECK(rounding.rounded() > 20);
  for (const auto& parameter : model->parameters()) step.gradients.push_back(parameter.grad());
  return step;
}

bool are_equal(const Step& a, const Step& b) {
  bool equal = a.loss.equal(b.loss);
  for (std::size_t i = 0; i < a.gradients.size(); ++i) equal = equal && a.gradients[i].equal(b.gradients[i]);
  return equal;
}

// Calls of operators, as a listener sees them.
struct Log final : vernier::RoundingListener {
  void called(const vernier::RoundedCall& call) override {
    if (call.is_rounded) rounded.emplace_back(call.name);
    for (const auto& output : call.outputs) outputs.push_back(output.scalar_type());
  }
  std::vector<std::string> rounded;
  std::vector<torch::ScalarType> outputs;
};

}  // namespace

TEST_CASE("random rounding: the digits of 50 expressions agree with exact errors within half a digit") {
  const auto expressions = Json::parse(std::ifstream(VERNIER_SOURCE_DIR "/tests/oracles/digits.json"));
  REQUIRE(expressions.size() == 50);
  constexpr std::uint64_t count = 60;
  for (const auto& expression : expressions) {
    const auto name = expression["name"].get<std::string>();
    CAPTURE(name);
    const auto exact = expression["exact"].get<double>(), deviation = expression["deviation"].get<double>();
    const double nearest = evaluated(expression);
    std::vector<double> samples;
    for (std::uint64_t sample = 0; sample < count; ++sample) {
      const RandomRounding rounding(sample);
      samples.push_back(evaluated(expression));
    }
    const double expected = vernier::significant_digits(exact * exact, deviation * deviation, torch::kFloat32);
    const double found = vernier::significant_digits(samples);
    CHECK(std::abs(found - expected) < 0.5);
    // Rounding to nearest errs by no more than a few deviations of rounding at random.
    CHECK(std::abs(nearest - exact) < 6 * deviation + 1e-7 * std::abs(exact));
    double mean = 0;
    for (const double sample : samples) mean += sample / count;
    CHECK(std::abs(mean - exact) < 6 * deviation / std::sqrt(count) + 1e-3 * deviation);
  }
  CHECK(!c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::CustomRNGKeyId));
}

TEST_CASE("random rounding: a seed gives the same bits with 1, 2 and 4 threads, and another seed gives others") {
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto plain = step_of(5);
  const auto x = torch::randn({300, 400});
  const auto wide = [&x] {
    const RandomRounding rounding(3);
    return torch::stack({x.exp(), (x * 1.1).tanh(), x / 3, x.softmax(1)});
  };
  const auto first = wide();
  CHECK(are_equal(plain, step_of(5)));
  CHECK(!are_equal(plain, step_of(6)));
  for (const int number : {2, 4}) {
    at::set_num_threads(number);
    CHECK(are_equal(plain, step_of(5)));
    CHECK(first.equal(wide()));
  }
  at::set_num_threads(threads);
}

TEST_CASE("random rounding: what is exact, whole, boolean, drawn or in float64 is left alone") {
  const auto x = torch::randn({64}), y = torch::randn({64}).round() / 8;
  const auto whole = torch::arange(64);
  const auto results = [&] {
    torch::manual_seed(3);
    return std::vector<torch::Tensor>{x * 2,
                                      x.relu(),
                                      -x,
                                      x.clone(),
                                      y + y.flip(0),
                                      x.view({8, 8}).t().contiguous(),
                                      x > 0,
                                      whole * 3 + 1,
                                      whole.sum(),
                                      x.argmax(),
                                      x.to(torch::kFloat64) / 3,
                                      torch::rand({64}),
                                      x.bernoulli(0.5),
                                      x.masked_fill(x > 0, 0.1),
                                      torch::full({3}, 0.1),
                                      x.to(torch::kBFloat16).to(torch::kFloat32) * 0 + 1,
                                      whole.cumsum(0),
                                      at::cat({x, y})};
  };
  const auto expected = results();
  const RandomRounding rounding(1);
  const auto found = results();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK((found[i].scalar_type() == expected[i].scalar_type()));
    CHECK(found[i].equal(expected[i]));
  }
}

TEST_CASE("random rounding: the noise is uniform within one unit in the last place, of each dtype") {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    CAPTURE(c10::toString(dtype));
    const auto x = torch::rand({20000}).add_(1).to(dtype);
    const double unit = std::ldexp(1, dtype == torch::kFloat32 ? -23 : dtype == torch::kBFloat16 ? -7 : -10);
    const auto exact = x.to(torch::kFloat64) / 3;  // from 1/3 to 2/3: units are a quarter or a half of that of 1
    torch::Tensor found, in_place = x.clone();
    {
      const RandomRounding rounding(9);
      found = x / 3;
      in_place.div_(3);
      CHECK(rounding.rounded() == 2);
    }
    CHECK((found.scalar_type() == dtype));
    for (const auto& result : {found, in_place}) {
      const auto error = (result.to(torch::kFloat64) - exact) / unit;
      CHECK(error.abs().max().item<double>() < 0.5);
      CHECK(std::abs(error.mean().item<double>()) < 0.005);
      const auto steps = torch::where(exact < 0.5, 0.25, 0.5);
      CHECK((error / steps).square().mean().item<double>() == doctest::Approx(1.0 / 6).epsilon(0.05));
    }
    CHECK(!found.equal(in_place));
  }
}

TEST_CASE("random rounding: infinities and NaN stay, and so does what overflows") {
  const auto x = torch::tensor({INFINITY, -INFINITY, NAN, 3e38F, 1.5F});
  const RandomRounding rounding(2);
  const auto y = x * 3;
  CHECK(std::isinf(y[0].item<float>()));
  CHECK(y[1].item<float>() == -INFINITY);
  CHECK(std::isnan(y[2].item<float>()));
  CHECK(std::isinf(y[3].item<float>()));
  CHECK(y[4].item<float>() == 4.5F);
  const auto half = torch::tensor({300.0F}).to(torch::kFloat16);
  CHECK(std::isinf((half * half).item<float>()));
}

TEST_CASE("random rounding: backward, lists and in-place operators are rounded once; a listener sees all") {
  auto weight = torch::rand({4, 4}).requires_grad_();
  const auto input = torch::rand({3, 4});
  Log log;
  {
    const RandomRounding rounding(4, &log);
    at::linear(input, weight).exp().sum().backward();
    const torch::NoGradGuard no_grad;
    weight.add_(weight.grad(), 0.1);
    CHECK(rounding.rounded() == static_cast<std::int64_t>(log.rounded.size()));
  }
  const auto count = [&](const char* name) { return std::ranges::count(log.rounded, name); };
  CHECK(count("mm") == 2);
  CHECK(count("exp") == 1);
  CHECK(count("mul") == 1);
  CHECK(count("sum") == 1);
  CHECK(count("add_") == 1);
}

TEST_CASE("random rounding: half precision, autocast and our own kernels") {
  const bool were_fused = vernier::fused_kernels();
  vernier::use_fused_kernels(true);
  {
    const RandomRounding outer(1);
    CHECK(!vernier::fused_kernels());
    { const RandomRounding inner(2); }
    CHECK(!vernier::fused_kernels());
  }
  CHECK(vernier::fused_kernels());
  vernier::use_fused_kernels(were_fused);
  const auto a = step_of(1, torch::kBFloat16), b = step_of(2, torch::kBFloat16);
  CHECK(!are_equal(a, b));
  CHECK(a.loss.item<double>() == doctest::Approx(b.loss.item<double>()).epsilon(0.1));
}

TEST_CASE("random rounding: significant digits of samples") {
  CHECK(vernier::significant_digits({1.0001, 0.9999, 1.0002}) == doctest::Approx(3.8160).epsilon(1e-4));
  CHECK(vernier::significant_digits({2, 2, 2}) == doctest::Approx(7.2247).epsilon(1e-4));
  CHECK(vernier::significant_digits({2, 2, 2}, torch::kBFloat16) == doctest::Approx(2.4082).epsilon(1e-4));
  CHECK(vernier::significant_digits({1, -1, 1, -1}) == 0);
  CHECK(vernier::significant_digits({1, NAN}) == 0);
  CHECK_THROWS_WITH_AS(vernier::significant_digits(std::vector<double>{1}),
                       "significant_digits: the spread of fewer than 2 samples is not known", vernier::Error);
}

TEST_CASE("random rounding: the last bit of a result that no operator computed") {
  const auto x = torch::rand({24000}).add_(1);
  const auto y = vernier::with_random_last_bit(x, 1, 2);
  const auto units = (y.to(torch::kFloat64) - x.to(torch::kFloat64)) * std::ldexp(1, 23);
  CHECK(units.abs().max().item<double>() == 1);
  CHECK(units.square().mean().item<double>() == doctest::Approx(1.0 / 6).epsilon(0.1));
  CHECK(y.equal(vernier::with_random_last_bit(x, 1, 2)));
  CHECK(vernier::with_random_last_bit(torch::zeros({9}), 1, 2).equal(torch::zeros({9})));
  CHECK_THROWS_AS(vernier::with_random_last_bit(torch::arange(3), 1, 2), vernier::Error);
}

}  // namespace random_rounding_test
