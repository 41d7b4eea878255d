#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string>

#include "small_run.h"
#include "thrown.h"

namespace ledger_test {

using vernier::Event;

namespace {

// 32 inputs, 16 hidden, 8 classes: 680 weights; batches of 10.
constexpr const char* base = R"([run]
steps = 4
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
constexpr const char* monitor = "[[monitor]]\nuse = \"ledger\"\n";
constexpr std::int64_t weights = (16 * 32 + 16 + 8 * 16 + 8) * 4;

using Bytes = std::map<std::string, std::int64_t>;

Bytes read(const std::filesystem::path& path) {
  Bytes bytes;
  std::ifstream in(path);
  for (std::string name, number; std::getline(in, name, '\t') && std::getline(in, number);)
    bytes[name] = std::stoll(number);
  return bytes;
}

Bytes measured(const std::string& more, const std::string& its_table = monitor) {
  const TemporaryFolder folder;
  SmallRun run(from_toml({base, its_table, more}), folder.path().string());
  run.train();
  CHECK_FALSE(c10::memoryProfilingEnabled());
  CHECK_FALSE(at::hasThreadLocalCallbacks());
  return read(folder / "memory.tsv");
}

}  // namespace

TEST_CASE("ledger: the bytes of a step, as counted by hand") {
  const auto bytes = measured("");
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

TEST_CASE("ledger: a policy's copies of the weights, whether it keeps them for a forward or an update") {
  for (const char* kept : {"forward", "update"}) {
    CAPTURE(kept);
    const auto bytes = measured("[precision]\nuse = \"bf16\"\nweight_casts = \"" + std::string(kept) +
                                "\"\n[accumulation]\nuse = \"fixed\"\nmicro_batches = 2\n");
    CHECK(bytes.at("weights") == weights);
    // The first layer's weight is not needed again, because the data want no gradient; an update keeps it all the same.
    const bool all = std::string(kept) == "update";
    CHECK(bytes.at("weight copies") == (all ? weights / 2 : 8 * 16 * 2));
    CHECK(bytes.at("activations/layers.0") ==
          5 * 32 * 2 + 5 * 16 * 2);  // a micro-batch has 5 samples; its copy is the first layer's
  }
}

TEST_CASE("ledger: the first step has it all too, but its peak comes before the optimizer's state") {
  const auto first = measured("", "[[monitor]]\nuse = \"ledger\"\nstep = 1\n");
  const auto second = measured("");
  CHECK(first.at("optimizer") == second.at("optimizer"));
  CHECK(first.at("activations") == second.at("activations"));
  CHECK(first.at("peak") <= second.at("peak"));
}

TEST_CASE("ledger: the training is the same with it, and a step that fails leaves nothing behind") {
  const TemporaryFolder folder;
  const auto trained = [&](const std::string& more) {
    SmallRun run(from_toml({base, more}), folder.path().string());
    run.train();
    return run.digest();
  };
  const auto plain = trained("");
  CHECK(trained(monitor) == plain);

  SmallRun run(from_toml({base, monitor}), folder.path().string());
  run.on(Event::LossReady, [](vernier::Run& now) {
    if (now.step == 1) throw vernier::Error("no");
  });
  CHECK(thrown_by([&] { run.train(); }).kind == 4);
  CHECK_FALSE(c10::memoryProfilingEnabled());
  CHECK_FALSE(at::hasThreadLocalCallbacks());
}

}  // namespace ledger_test
