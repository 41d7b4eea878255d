// callback/memory: the bytes of the steps that are due as metrics, and those of one step by layer in a file.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

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
)";
constexpr const char* memory = "[[callback]]\nuse = \"memory\"\nevery = 3\n";
constexpr std::int64_t weights = (16 * 32 + 16 + 8 * 16 + 8) * 4;

using Bytes = std::map<std::string, std::int64_t>;

// The metrics of each step.
std::vector<Bytes> metrics_of(const std::string& more) {
  const TemporaryFolder folder;
  SmallRun small(from_toml({base, memory, more}), folder.path().string());
  std::vector<Bytes> steps;
  small.on(Event::StepEnd, [&](const Run& run) {
    steps.emplace_back();
    for (const auto* metric : run.metrics.set_now()) {
      if (metric->name.starts_with("memory_")) steps.back()[metric->name] = static_cast<std::int64_t>(metric->value());
    }
  });
  small.train();
  return steps;
}

// The file, which has the bytes of one step.
Bytes file_of(const std::string& more, const std::string& its_table = memory) {
  const TemporaryFolder folder;
  SmallRun run(from_toml({base, its_table, more}), folder.path().string());
  run.train();
  CHECK_FALSE(c10::memoryProfilingEnabled());
  CHECK_FALSE(at::hasThreadLocalCallbacks());
  Bytes bytes;
  std::ifstream in(folder / "memory.tsv");
  for (std::string name, number; std::getline(in, name, '\t') && std::getline(in, number);)
    bytes[name] = std::stoll(number);
  return bytes;
}

}  // namespace

TEST_CASE("memory: the bytes by purpose, as counted by hand, in the first and in every third step") {
  const auto steps = metrics_of("");
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

TEST_CASE("memory: every part of a policy with masters and copies is declared") {
  const auto parts = [](const std::string& more) {
    const auto steps = metrics_of(more);
    const auto declared = make_plugin<vernier::Callback>("callback/memory")->metrics();
    for (const auto& [name, bytes] : steps[2]) {
      CHECK_MESSAGE(std::ranges::find(declared, name, &vernier::MetricInfo::name) != declared.end(), name);
    }
    return steps[2];
  };
  CHECK(parts("[precision]\nuse = 'bf16'\nlevel = 'O2'\n").at("memory_masters") == weights);
  CHECK(parts("[precision]\nuse = 'bf16'\nweight_casts = 'update'\n").at("memory_weight_copies") == weights / 2);
}

TEST_CASE("memory: the file has the bytes of one step, by layer too, as counted by hand") {
  const auto bytes = file_of("");
  CHECK(bytes.at("weights") == weights);
  CHECK(bytes.at("gradients") == weights);
  CHECK(bytes.at("optimizer") == 2 * weights);
  CHECK(bytes.at("batch") == 10 * 32 * 4 + 10 * 8);
  // relu's result; log_softmax's result and the sum of weights of cross_entropy. The loss stays: it is run.loss.
  CHECK(bytes.at("activations/layers.0") == 10 * 16 * 4);
  CHECK(bytes.at("activations/layers.1") == 10 * 8 * 4 + 4);
  CHECK(bytes.at("activations") == bytes.at("activations/layers.0") + bytes.at("activations/layers.1"));
  CHECK(bytes.count("masters") == 0);
  CHECK(bytes.count("weight copies") == 0);
  CHECK(bytes.at("peak") >= 4 * weights + bytes.at("batch"));
}

TEST_CASE("memory: a policy's copies of the weights, whether it keeps them for a forward or an update") {
  for (const char* kept : {"forward", "update"}) {
    CAPTURE(kept);
    const auto bytes = file_of("[precision]\nuse = \"bf16\"\nweight_casts = \"" + std::string(kept) +
                               "\"\n[accumulation]\nuse = \"fixed\"\nmicro_batches = 2\n");
    CHECK(bytes.at("weights") == weights);
    // Nothing needs the first layer's weight again, because the data want no gradient. An update keeps it anyway.
    const bool all = std::string(kept) == "update";
    CHECK(bytes.at("weight copies") == (all ? weights / 2 : 8 * 16 * 2));
    CHECK(bytes.at("activations/layers.0") ==
          5 * 32 * 2 + 5 * 16 * 2);  // a micro-batch has 5 samples; its copy is the first layer's
  }
}

TEST_CASE("memory: the first step has it all too, but its peak comes before the optimizer's state") {
  const auto first = file_of("", memory + std::string("step = 1\n"));
  const auto second = file_of("");
  CHECK(first.at("optimizer") == second.at("optimizer"));
  CHECK(first.at("activations") == second.at("activations"));
  CHECK(first.at("peak") <= second.at("peak"));
}

TEST_CASE("memory: a step that something else follows is left out, and the table is of the next") {
  const TemporaryFolder folder;
  // The first of two has the ledger of steps 1, 3 and 6; the second wants step 3 for its table.
  const auto both =
      memory + std::string("[[callback]]\nuse = \"memory\"\nevery = 100\nstep = 3\nfile = \"other.tsv\"\n");
  SmallRun small(from_toml({base, both}), folder.path().string());
  small.on(Event::StepEnd, [&](const Run& run) {
    CHECK(std::filesystem::exists(folder / "memory.tsv") == (run.step >= 2));
    CHECK(std::filesystem::exists(folder / "other.tsv") == (run.step >= 4));
  });
  small.train();
}

TEST_CASE("memory: the training is the same with it, and a step that fails leaves nothing behind") {
  const TemporaryFolder folder;
  const auto trained = [&](const std::string& more) {
    SmallRun run(from_toml({base, more}), folder.path().string());
    run.train();
    return run.digest();
  };
  const auto plain = trained("");
  CHECK(trained(memory) == plain);

  SmallRun run(from_toml({base, memory}), folder.path().string());
  run.on(Event::LossReady, [](vernier::Run& now) {
    if (now.step == 1) throw vernier::Error("no");
  });
  CHECK(thrown_by([&] { run.train(); }).kind == 4);
  CHECK_FALSE(c10::memoryProfilingEnabled());
  CHECK_FALSE(at::hasThreadLocalCallbacks());
}

}  // namespace memory_test
