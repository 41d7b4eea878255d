// clip_norm and clip_value, against LibTorch's own.
#include <doctest/doctest.h>
#include <torch/nn/utils/clip_grad.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <cmath>
#include <limits>

#include "plugin_library.h"

namespace clip_test {

using vernier::Callback;
using vernier::Event;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

vernier::Table table(const char* key, double value) {
  return {{key, {value, "test.toml:2"}}};
}

std::vector<torch::Tensor> parameters_with_gradients(double size) {
  torch::manual_seed(5);
  std::vector<torch::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{3, 4}, {5}, {}, {2, 2}}) {
    parameters.push_back(torch::zeros(shape).requires_grad_());
    parameters.back().mutable_grad() = torch::randn(shape) * size;
  }
  parameters.push_back(torch::zeros({2}).requires_grad_());  // without a gradient
  return parameters;
}

// Lets the callback clip; returns the metric.
double clip(const std::string& name, vernier::Table options, const std::vector<torch::Tensor>& parameters,
            float scale = 1) {
  const auto plugin = make_plugin<Callback>("callback/" + name, std::move(options));
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *plugin, false);
  vernier::TrainerRun run;
  for (const auto& parameter : parameters) run.parameters.push_back({"p", parameter, parameter});
  if (scale != 1) run.grad_scale = torch::full({}, scale);
  vernier::HostApi::emit(bus, Event::GradientsReady, run);
  run.gradients();  // the optimizer's part is done here
  return run.metrics.value("grad_norm").value_or(-1);
}

void check_same_gradients(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].grad().defined() == b[i].grad().defined());
    if (a[i].grad().defined()) CHECK(torch::allclose(a[i].grad(), b[i].grad(), 1e-6, 0, /*equal_nan=*/true));
  }
}

}  // namespace

TEST_CASE("clip_norm: LibTorch's clip_grad_norm_, below, at and above the limit") {
  for (const double size : {0.01, 1.0, 100.0}) {
    for (const double order : {1.0, 2.0, 3.0, infinity}) {
      CAPTURE(size);
      CAPTURE(order);
      const auto ours = parameters_with_gradients(size), theirs = parameters_with_gradients(size);
      auto options = table("max_norm", 2.5);
      options["norm_type"] = {order, "test.toml:3"};
      const double clipped = clip("clip_norm", options, ours);
      const double norm = torch::nn::utils::clip_grad_norm_(theirs, 2.5, order);
      check_same_gradients(ours, theirs);
      CHECK(clipped == doctest::Approx(norm).epsilon(1e-6));
    }
  }
}

TEST_CASE("clip_norm: a loss scale at the end of float32 leaves room for the factor") {
  const float scale = std::ldexp(1.0F, 126);
  const auto ours = parameters_with_gradients(0.1), theirs = parameters_with_gradients(0.1);
  for (const auto& parameter : ours) {
    if (parameter.grad().defined()) parameter.grad().mul_(scale);
  }
  const double clipped = clip("clip_norm", table("max_norm", 1e-3), ours, scale);
  CHECK(clipped == doctest::Approx(torch::nn::utils::clip_grad_norm_(theirs, 1e-3)).epsilon(1e-6));
  check_same_gradients(ours, theirs);
}

TEST_CASE("clip_norm: what is not a number spreads, as in PyTorch") {
  for (const double odd : {infinity, std::nan("")}) {
    const auto ours = parameters_with_gradients(1), theirs = parameters_with_gradients(1);
    for (const auto& parameters : {ours, theirs}) parameters[1].grad()[2] = odd;
    const double clipped = clip("clip_norm", {}, ours);
    torch::nn::utils::clip_grad_norm_(theirs, 1.0);
    check_same_gradients(ours, theirs);
    CHECK_FALSE(std::isfinite(clipped));
  }
}

TEST_CASE("clip_value: LibTorch's clip_grad_value_, bit for bit") {
  for (const double size : {0.01, 1.0, 100.0}) {
    const auto ours = parameters_with_gradients(size), theirs = parameters_with_gradients(size);
    for (const auto& parameters : {ours, theirs}) {
      parameters[0].grad()[0][0] = infinity;
      parameters[0].grad()[0][1] = -infinity;
      parameters[0].grad()[0][2] = std::nan("");
    }
    clip("clip_value", table("max_value", 0.75), ours);
    torch::nn::utils::clip_grad_value_(theirs, 0.75);
    for (std::size_t i = 0; i + 1 < ours.size(); ++i) {
      CHECK(torch::equal(ours[i].grad().nan_to_num(9), theirs[i].grad().nan_to_num(9)));
    }
  }
}

TEST_CASE("clip: without a gradient there is nothing to do, and limits are above 0") {
  clip("clip_norm", {}, {torch::zeros({2})});
  CHECK(make_plugin<Callback>("callback/clip_norm", table("norm_type", infinity))->metrics().at(0).meaning ==
        "inf-norm of all gradients before clipping");
  clip("clip_value", {}, {torch::zeros({2})});
  CHECK_THROWS_AS(make_plugin<Callback>("callback/clip_norm", table("max_norm", 0)), vernier::Error);
  CHECK_THROWS_AS(make_plugin<Callback>("callback/clip_norm", table("norm_type", -1)), vernier::Error);
  CHECK_THROWS_AS(make_plugin<Callback>("callback/clip_value", table("max_value", 0)), vernier::Error);
}

}  // namespace clip_test
