// none, static and dynamic.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/grad_scaler.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <limits>
#include <random>

#include "plugin_library.h"
#include "temporary_folder.h"

using vernier::Event;
using vernier::Scaler;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A scaler as the trainer calls it, on one parameter whose gradient is given.
struct Fixture {
  explicit Fixture(const std::string& name, vernier::Table options = {})
      : plugin(make_plugin<Scaler>("scaler/" + name, std::move(options))), weight(torch::zeros({3})) {
    bus.attach(*plugin, false);
    run.parameters.push_back({"weight", weight, weight});
    plugin->prepare(run);
  }

  // The scale of the step, with a gradient whose true value is `gradient`.
  double step(double gradient) {
    run.notices.clear();
    run.metrics.clear();
    run.found_inf.reset();
    const auto scale = plugin->scale(torch::ones({}));
    weight.mutable_grad() = torch::full({3}, gradient) * scale;
    plugin->unscale(run);
    plugin->update(run);
    bus.emit(Event::StepEnd, run);
    run.step += 1;
    return scale.item<double>();
  }

  std::unique_ptr<Scaler> plugin;
  torch::Tensor weight;
  vernier::Run run;
  vernier::Bus bus;
};

vernier::Table small_law() {
  return {{"init_scale", {64.0, ""}}, {"growth_interval", {std::int64_t{3}, ""}}, {"growth_factor", {4.0, ""}}};
}

}  // namespace

TEST_CASE("scaler: none leaves loss and gradients and checks nothing") {
  Fixture fixture("none");
  const auto loss = torch::ones({});
  CHECK(fixture.plugin->scale(loss).is_same(loss));
  CHECK_FALSE(fixture.plugin->scales());
  fixture.step(infinity);
  CHECK_FALSE(fixture.run.found_inf.defined());
  CHECK(fixture.run.metrics.set_now().empty());
}

TEST_CASE("scaler: static scales and unscales exactly by a power of two, and never changes") {
  Fixture fixture("static", {{"scale", {4096.0, ""}}});
  CHECK(fixture.plugin->scales());
  for (const double gradient : {1.0 / 3, infinity, std::nan(""), 1e-20}) {
    CHECK(fixture.step(gradient) == 4096.0);
    const auto unscaled = fixture.weight.grad()[0].item<float>();
    if (std::isfinite(gradient)) CHECK(unscaled == static_cast<float>(gradient));
    CHECK(fixture.run.found_inf.item<float>() == (std::isfinite(gradient) ? 0.0F : 1.0F));
    CHECK(fixture.run.metrics.value("scale") == 4096.0);
    CHECK(fixture.run.notices.empty());
  }
}

TEST_CASE("scaler: dynamic's law, told step by step") {
  Fixture fixture("dynamic", small_law());
  const std::vector<std::pair<double, double>> gradients_and_scales = {{1, 64},         {1, 64},  {1, 64},
                                                                       {1, 256},  // three in a row
                                                                       {infinity, 256}, {1, 128}, {std::nan(""), 128},
                                                                       {1, 64},         {1, 64},  {infinity, 64},
                                                                       {1, 32},         {1, 32},  {1, 32},
                                                                       {1, 128}};
  for (const auto& [gradient, scale] : gradients_and_scales) {
    CHECK(fixture.step(gradient) == scale);
    CHECK(fixture.run.metrics.value("scale") == scale);
    CHECK(fixture.run.found_inf.item<float>() == (std::isfinite(gradient) ? 0.0F : 1.0F));
  }
}

TEST_CASE("scaler: dynamic is PyTorch's GradScaler over random infinities") {
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    Fixture fixture("dynamic", small_law());
    vernier::GradScaler reference(torch::kCPU, {.init_scale = 64, .growth_factor = 4, .growth_interval = 3});
    for (int step = 0; step < 200; ++step) {
      CHECK(fixture.plugin->scale(torch::ones({})).item<double>() == reference.get_scale());
      const double gradient = random() % 4 == 0 ? infinity : 0.5;
      const auto gradients = std::vector{torch::full({3}, gradient)};
      reference.unscale_(gradients);
      reference.update();
      fixture.step(gradient);
    }
  }
}

TEST_CASE("scaler: dynamic tells each change of the scale once") {
  Fixture fixture("dynamic", small_law());
  fixture.step(infinity);
  REQUIRE(fixture.run.notices.size() == 1);
  CHECK(fixture.run.notices[0].text() == "scale_changed from=64 to=32");
  for (int i = 0; i < 2; ++i) {
    fixture.step(1);
    CHECK(fixture.run.notices.empty());
  }
  fixture.step(1);
  REQUIRE(fixture.run.notices.size() == 1);
  CHECK(fixture.run.notices[0].text() == "scale_changed from=32 to=128");
}

TEST_CASE("scaler: dynamic goes on after a save as if there had been none") {
  Fixture fixture("dynamic", small_law());
  for (const double gradient : {1.0, infinity, 1.0, 1.0}) fixture.step(gradient);
  const TemporaryFolder folder;
  vernier::save_safetensors(folder / "state", fixture.plugin->save().tensors);
  Fixture loaded("dynamic", small_law());
  vernier::State state;
  state.tensors = vernier::load_safetensors(folder / "state");
  loaded.plugin->load(state);
  for (int step = 0; step < 10; ++step) {
    const double gradient = step == 5 ? infinity : 1;
    CHECK(fixture.step(gradient) == loaded.step(gradient));
    CHECK(fixture.run.notices.size() == loaded.run.notices.size());
  }
}

TEST_CASE("scaler: dynamic goes on with the scale that was saved and the factors of now") {
  Fixture fixture("dynamic", small_law());
  fixture.step(infinity);
  fixture.step(1);
  Fixture loaded("dynamic", {{"growth_interval", {std::int64_t{2}, ""}}, {"growth_factor", {8.0, ""}}});
  loaded.plugin->load(fixture.plugin->save());
  CHECK(loaded.step(1) == 32);
  CHECK(loaded.step(1) == 256);
}

TEST_CASE("scaler: options out of range are refused") {
  const auto refused = [](const std::string& name, const char* key, double value) {
    CHECK_THROWS_AS(make_plugin<Scaler>("scaler/" + name, {{key, {value, "test.toml:2"}}}), vernier::Error);
  };
  refused("static", "scale", 0.0);
  refused("static", "scale", -1.0);
  refused("dynamic", "init_scale", 0.0);
  refused("dynamic", "growth_factor", 1.0);
  refused("dynamic", "backoff_factor", 1.0);
  refused("dynamic", "backoff_factor", 0.0);
}
