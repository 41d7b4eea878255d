// callback/memory: the bytes of a step as metrics, in the steps that are due.
#include <doctest/doctest.h>
#include <vernier/metric_info.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "small_run.h"

namespace memory_test {

using vernier::Event;
using vernier::Run;

namespace {

// 32 inputs, 16 hidden, 8 classes: 680 weights; batches of 10.
constexpr const char* base = R"([run]
steps = 7
[task]
use = "mlp"
hidden = [16]
classes = 8
batch_size = 10
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[[callback]]
use = "memory"
every = 3
)";
constexpr double weights = (16 * 32 + 16 + 8 * 16 + 8) * 4;

using Bytes = std::map<std::string, double>;

// The bytes of each step.
std::vector<Bytes> measured(const std::string& more) {
  SmallRun small(from_toml({base, more}));
  std::vector<Bytes> steps;
  small.on(Event::StepEnd, [&](const Run& run) {
    steps.emplace_back();
    for (const auto* metric : run.metrics.set_now()) {
      if (metric->name.starts_with("memory_")) steps.back()[metric->name] = metric->value();
    }
  });
  small.train();
  return steps;
}

}  // namespace

TEST_CASE("memory: the bytes by purpose, as counted by hand, in the first and in every third step") {
  const auto steps = measured("");
  REQUIRE(steps.size() == 7);
  for (std::size_t i = 0; i < steps.size(); ++i) CHECK(steps[i].empty() == (i != 0 && i != 2 && i != 5));
  for (const std::size_t i : {0, 2, 5}) {
    CAPTURE(i);
    CHECK(steps[i].at("memory_weights") == weights);
    CHECK(steps[i].at("memory_gradients") == weights);
    CHECK(steps[i].at("memory_optimizer") == 2 * weights);
    CHECK(steps[i].at("memory_batch") == 10 * 32 * 4 + 10 * 8);
    CHECK(steps[i].at("memory_activations") == 10 * 16 * 4 + 10 * 8 * 4 + 4);
    CHECK(steps[i].at("memory_peak") >= 4 * weights);
  }
}

TEST_CASE("memory: every part of a policy with masters and copies has a name in the registry") {
  const auto parts = [](const std::string& more) {
    const auto steps = measured(more);
    for (const auto& [name, bytes] : steps[2]) CHECK_MESSAGE(vernier::metric_info(name) != nullptr, name);
    return steps[2];
  };
  CHECK(parts("[precision]\nuse = 'bf16'\nlevel = 'O2'\n").at("memory_masters") == weights);
  CHECK(parts("[precision]\nuse = 'bf16'\nweight_casts = 'update'\n").at("memory_weight_copies") == weights / 2);
}

TEST_CASE("memory: two ledgers of one run take turns") {
  const TemporaryFolder folder;
  SmallRun small(from_toml({base, "[[monitor]]\nuse = 'ledger'\nstep = 3\n"}), folder.path());
  std::vector<std::int64_t> steps;
  small.on(Event::StepEnd, [&](const Run& run) {
    const auto now = run.metrics.set_now();
    if (std::ranges::any_of(now, [](const auto* metric) { return metric->name == "memory_peak"; })) {
      steps.push_back(run.step + 1);
    }
    CHECK(std::filesystem::exists(folder / "memory.tsv") == (run.step + 1 > 4));
  });
  small.train();
  CHECK(steps == std::vector<std::int64_t>{1, 3, 6});
}

}  // namespace memory_test
