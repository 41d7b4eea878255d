// Tests the rule of scaler/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <vernier/host.h>

#include <limits>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

// A plugin whose scale is 8. Options are written as the TOML has them; "test" is their place.
struct MyNameTest {
  MyNameTest() { plugin.prepare(run); }
  double scale() { return plugin.scale(at::ones({})).item<double>(); }
  // A step whose one gradient has this value after backward. Returns what the optimizer gets.
  double step(double gradient) {
    run.parameters = {{.name = "weight", .model = at::ones({}), .master = at::ones({})}};
    run.parameters[0].master.mutable_grad() = at::full({}, gradient);
    plugin.unscale(run);
    const double unscaled = run.gradients()[0].item<double>();
    plugin.update(run);
    return unscaled;
  }

  vernier::Options options{"scaler/my_name", {{"scale", {8.0, "test"}}}, "test"};
  MyName plugin{options};
  vernier::TrainerRun run;
};

}  // namespace

TEST_CASE("the loss is multiplied by the scale, and the gradients are divided by it") {
  MyNameTest made;
  CHECK(made.scale() == 8.0);
  CHECK(made.step(24.0) == 3.0);
  CHECK(made.run.found_inf.item<float>() == 0);
  CHECK(made.scale() == 8.0);
}

TEST_CASE("an overflow halves the scale, also that of a plugin that loads it") {
  MyNameTest made, resumed;
  made.step(std::numeric_limits<double>::infinity());
  CHECK(made.run.found_inf.item<float>() == 1);
  CHECK(made.scale() == 4.0);
  resumed.plugin.load(made.plugin.save());
  CHECK(resumed.scale() == 4.0);
}
