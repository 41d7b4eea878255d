// callback/layers: the metrics are those that the tensors of a step give, and measuring changes no bit of the run.
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <map>

#include "small_run.h"

namespace layers_test {

using vernier::Event;
using vernier::Run;

namespace {

constexpr const char* base = R"([run]
steps = 6
[task]
use = "mlp"
inputs = 6
hidden = [5]
classes = 3
samples = 48
batch_size = 12
[optimizer]
use = "adamw"
learning_rate = 0.01
[checkpoint]
use = "none"
)";
constexpr const char* every_second = "[[callback]]\nuse = 'layers'\nevery = 2\n";

// Measures the layers of a run by hand, and keeps the metrics of each step.
struct Observed {
  explicit Observed(const std::string& more) : small(from_toml({base, every_second, more})) {
    small.on(Event::GradientsReady, [this](Run& run) {
      before.clear();
      norms.clear();
      for (const auto& parameter : run.parameters) {
        const auto layer = parameter.name.substr(0, parameter.name.rfind('.'));
        const auto gradient = parameter.master.grad().to(torch::kFloat64);
        norms[layer] = std::hypot(norms[layer], gradient.norm().item<double>());
        largest[layer] = std::max(largest[layer], gradient.abs().max().item<double>());
        before.push_back(parameter.best().to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true));
      }
    });
    small.on(Event::StepEnd, [this](Run& run) { look(run); });
    outcome = small.train();
  }

  void look(const Run& run) {
    std::map<std::string, double> metrics;
    for (const auto* metric : run.metrics.set_now()) metrics[metric->name] = metric->value();
    if (run.step % 2 == 0) compare(run, metrics);
    steps.push_back(std::move(metrics));
    largest.clear();
  }

  void compare(const Run& run, std::map<std::string, double>& metrics) const {
    std::map<std::string, double> changes, sizes;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto layer = run.parameters[i].name.substr(0, run.parameters[i].name.rfind('.'));
      const auto after = run.parameters[i].best().to(torch::kFloat64);
      changes[layer] = std::hypot(changes[layer], (after - before[i]).norm().item<double>());
      sizes[layer] = std::hypot(sizes[layer], before[i].norm().item<double>());
    }
    double change = 0, size = 0;
    for (const auto& [layer, norm] : norms) {
      CAPTURE(layer);
      REQUIRE(metrics.count("layer_grad_norm/" + layer) == 1);
      CHECK(metrics["layer_grad_norm/" + layer] == doctest::Approx(norm).epsilon(1e-5));
      CHECK(metrics["layer_grad_max/" + layer] == doctest::Approx(largest.at(layer)).epsilon(1e-5));
      CHECK(metrics["layer_update_ratio/" + layer] == doctest::Approx(changes[layer] / sizes[layer]).epsilon(1e-3));
      change = std::hypot(change, changes[layer]);
      size = std::hypot(size, sizes[layer]);
    }
    CHECK(metrics["update_ratio"] == doctest::Approx(change / size).epsilon(1e-3));
  }

  SmallRun small;
  std::map<std::string, double> norms, largest;
  std::vector<torch::Tensor> before;
  std::vector<std::map<std::string, double>> steps;
  vernier::Outcome outcome;
};

std::string digest_with(const std::string& more) {
  SmallRun run(from_toml({base, more}));
  run.train();
  return run.digest();
}

}  // namespace

TEST_CASE("layers: the metrics are those of the step's tensors, in every policy, with micro-batches and a scaler") {
  struct Case {
    std::string more;
    double bits;
  };
  const Case cases[] = {{"", 24},
                        {"[precision]\nuse = 'bf16'\n[accumulation]\nuse = 'fixed'\nmicro_batches = 3\n", 8},
                        {"[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\n", 11},
                        {"[precision]\nuse = 'bf16'\nlevel = 'O2'\n", 8}};
  for (const auto& each : cases) {
    CAPTURE(each.more);
    const Observed observed(each.more);
    REQUIRE_FALSE(observed.outcome.error);
    REQUIRE(observed.steps.size() == 6);
    for (std::size_t i = 0; i < observed.steps.size(); ++i) {
      const bool is_measured = i % 2 == 1;
      CHECK(observed.steps[i].count("update_ratio") == (is_measured ? 1 : 0));
    }
    int layers = 0;
    for (const auto& [name, value] : observed.steps[1]) {
      if (!name.starts_with("layer_precision/")) continue;
      CHECK(value == each.bits);
      ++layers;
    }
    CHECK(layers == static_cast<int>(observed.norms.size()));
  }
}

TEST_CASE("layers: what is switched off is not measured, and a skipped update has no size") {
  const auto counts = [](const std::map<std::string, double>& metrics, const std::string& kind) {
    return std::ranges::count_if(metrics, [&](const auto& each) { return each.first.starts_with(kind); });
  };
  struct Case {
    std::string option;
    const char* kind;
  };
  for (const auto& each : {Case{"gradients", "layer_grad_"}, Case{"updates", "layer_update_ratio/"},
                           Case{"precision", "layer_precision/"}}) {
    CAPTURE(each.option);
    const Observed on("");
    CHECK(counts(on.steps[1], each.kind) > 0);
    SmallRun off(from_toml({base, every_second, "[[callback]]\nuse = 'layers'\n" + each.option + " = false\n"}));
    off.on(Event::StepEnd, [&](const Run& run) {
      for (const auto* metric : run.metrics.set_now()) CHECK_FALSE(metric->name.starts_with(each.kind));
    });
    off.train();
  }
  SmallRun skipped(from_toml({base, every_second}));
  skipped.on(Event::GradientsReady, [](Run& run) { run.skip_update = torch::ones({}); });
  skipped.on(Event::StepEnd, [](const Run& run) {
    if (run.step == 2) CHECK(run.metrics.value("update_ratio").value() == 0);
  });
  skipped.train();
}

TEST_CASE("layers: a run that is measured has the bits of one that is not") {
  for (const std::string policy :
       {"", "[precision]\nuse = 'bf16'\n", "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\n",
        "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
        "[[callback]]\nuse = 'clip_norm'\nmax_norm = 0.1\n", "[[callback]]\nuse = 'sam'\n"}) {
    CAPTURE(policy);
    CHECK(digest_with(every_second + policy) == digest_with(policy));
    CHECK(digest_with(policy + every_second) == digest_with(policy));
  }
}

}  // namespace layers_test
