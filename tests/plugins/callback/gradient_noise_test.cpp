// gradient_noise: the statistics of the noise, its decay, and the same noise again.
#include <doctest/doctest.h>
#include <torch/utils.h>
#include <vernier/host.h>

#include "same_tensors.h"
#include "small_run.h"
#include "toy_run.h"

namespace gradient_noise_test {

using vernier::Event;
using vernier::Run;

namespace {

struct Noise {
  explicit Noise(const std::string& options = "", std::uint64_t seed = 1)
      : plugin(make_plugin<vernier::Callback>("callback/gradient_noise", from_toml({options}))) {
    auto weight = torch::zeros({1000, 100});
    weight.mutable_grad() = torch::zeros({1000, 100});
    run.parameters.push_back({"w", weight, weight});
    run.seed = seed;
    vernier::HostApi::attach(bus, *plugin, false);
    plugin->prepare(run);
  }
  // Added to a gradient of fours, which are scaled by two.
  torch::Tensor added(std::int64_t updates) {
    auto gradient = run.parameters[0].master.grad();
    gradient.fill_(8);
    run.grad_scale = torch::tensor(2.0F);
    run.updates = updates;
    vernier::HostApi::emit(bus, Event::GradientsReady, run);
    CHECK_FALSE(run.grad_scale.defined());
    return gradient.sub(4);
  }
  std::unique_ptr<vernier::Callback> plugin;
  vernier::TrainerRun run;
  vernier::Bus bus;
};

}  // namespace

TEST_CASE("gradient_noise: normal, of the variance eta / (1 + updates) ^ gamma") {
  const struct {
    const char* options;
    std::int64_t updates;
    double deviation;
  } cases[] = {{"", 0, 0.1},
               {"", 99, 0.1 * std::pow(100, -0.275)},
               {"eta = 0.25\ngamma = 1.0", 24, 0.1},
               {"eta = 1.0\ngamma = 0", 1000, 1.0}};
  for (const auto& [options, updates, deviation] : cases) {
    CAPTURE(options);
    Noise noise(options);
    const auto values = (noise.added(updates) / deviation).flatten();  // 100,000 of them
    CHECK(std::abs(values.mean().item<double>()) < 0.016);             // five deviations of the mean
    CHECK(std::abs(values.std().item<double>() - 1) < 0.012);
    CHECK(std::abs(values.pow(4).mean().item<double>() - 3) < 0.16);
    CHECK(std::abs(values.abs().lt(1).to(torch::kDouble).mean().item<double>() - 0.6827) < 0.0075);
    CHECK(noise.run.metrics.value("gradient_noise").value() == doctest::Approx(deviation));
  }
}

TEST_CASE("gradient_noise: each update has other noise, each seed too, and the same after loading; others draw on") {
  Noise first, second, other("", 2);
  torch::manual_seed(5);
  const auto drawn = torch::rand({4});
  torch::manual_seed(5);
  const auto noise = first.added(0).clone();
  CHECK(torch::equal(torch::rand({4}), drawn));
  CHECK(torch::equal(second.added(0), noise));
  CHECK_FALSE(torch::equal(other.added(0), noise));
  auto saved = first.plugin->save();
  for (auto& [name, tensor] : saved.tensors) tensor = tensor.clone();
  const auto next = first.added(1).clone();
  CHECK_FALSE(torch::equal(next, noise));
  other.plugin->load(saved);
  CHECK(torch::equal(other.added(1), next));
}

}  // namespace gradient_noise_test
