// Tests the rule of optimizer/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <vernier/host.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

// A run with one weight of 1. Options are written as the TOML has them; "test" is their place.
struct MyNameTest {
  MyNameTest() {
    run.parameters = {{.name = "weight", .model = weight, .master = weight}};
    plugin.prepare(run);
  }
  double step(double gradient, bool skip = false) {
    weight.mutable_grad() = at::full({}, gradient);
    run.skip_update = at::full({}, skip ? 1.0 : 0.0);
    plugin.step(run);
    return weight.item<double>();
  }

  vernier::Options options{
      "optimizer/my_name", {{"learning_rate", {0.25, "test"}}, {"momentum", {0.5, "test"}}}, "test"};
  MyName plugin{options};
  torch::Tensor weight = at::ones({});
  vernier::TrainerRun run;
};

}  // namespace

TEST_CASE("a step goes against the gradient, and half of the last change is kept") {
  MyNameTest made;
  CHECK(made.step(1.0) == 0.75);
  CHECK(made.step(0.5) == 0.5);
  made.run.learning_rate_factor = 0;
  CHECK(made.step(1.0) == 0.5);
}

TEST_CASE("a skipped update changes nothing, whatever the gradient") {
  MyNameTest made, other;
  made.step(1.0);
  other.step(1.0);
  CHECK(made.step(std::numeric_limits<double>::quiet_NaN(), /*skip=*/true) == 0.75);
  CHECK(made.step(0.5) == other.step(0.5));
}

TEST_CASE("an optimizer that loads what another one saved takes the same step") {
  MyNameTest made, resumed;
  made.step(1.0);
  resumed.plugin.load(made.plugin.save());
  const torch::NoGradGuard no_grad;
  resumed.weight.copy_(made.weight);
  CHECK(resumed.step(0.5) == made.step(0.5));
}
