// `vernier replay RUN`: any step of a run again, a layer over many steps, and where two runs differ first.
#include "tools/replay/replayed_run.h"

#include <vernier/checkpoint_folder.h>

#include <cmath>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>

#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"

namespace replayed_run_test {

namespace fs = std::filesystem;
using vernier::Look;
using Words = std::vector<std::string>;

namespace {

constexpr const char* base = R"([run]
steps = 12
seed = 3
threads = 1
validate_every = 5
device = "cpu"
output = "out"
[task]
use = "mlp"
samples = 80
batch_size = 12
[accumulation]
use = "fixed"
micro_batches = 2
[optimizer]
use = "adamw"
learning_rate = 0.01
[checkpoint]
use = "rolling"
every = 4
keep_last = 9
[[callback]]
use = "schedule"
kind = "cosine"
warmup_steps = 3
[[callback]]
use = "clip_norm"
max_norm = 0.5
[[monitor]]
use = "jsonl"
[[monitor]]
use = "digest"
every = 1
)";

const std::map<std::string, std::string>& precisions() {
  static const std::map<std::string, std::string> all = {
      {"fp32", ""},
      {"fp16", "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 65536\ngrowth_interval = 3\n"},
      {"bf16 O2", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n"}};
  return all;
}

nlohmann::json line_of(const fs::path& file, std::int64_t step) {
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    auto line = nlohmann::json::parse(text);
    if (line["step"] == step && line.contains("loss")) return line;
  }
  return {};
}

vernier::Fingerprint kept(const fs::path& run, std::int64_t step) {
  const auto line = line_of(run / "digests.jsonl", step);
  using Digests = std::map<std::string, std::string>;
  return {line.at("loss"), line.at("gradients").get<Digests>(), line.at("weights").get<Digests>()};
}

// Names, sizes and times: what a program that only reads leaves as it is.
std::string listing(const fs::path& folder) {
  std::string all;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  for (const auto& path : paths) {
    all += path.string() + ' ' + std::to_string(fs::last_write_time(path).time_since_epoch().count()) + '\n';
  }
  return all;
}

double sum_of_squares(const vernier::TensorRange& range) {
  return range.rms * range.rms * static_cast<double>(range.elements);
}

}  // namespace

TEST_CASE("replay: every step that is gone to has the bits of the run, in every precision") {
  for (const auto& [name, tables] : precisions()) {
    CAPTURE(name);
    RunFolder run(base + tables);
    REQUIRE(run.train() == 0);
    const auto before = listing(run.at("out"));
    const auto folder = run.at("out");
    const std::atomic<int> stop = 0;
    vernier::ReplayedRun replayed(folder, built_plugins(), stop);
    for (const std::int64_t step : {1, 4, 5, 12}) {
      CAPTURE(step);
      const auto begin =
          replayed.start_before(step, [&](std::int64_t now) { return now == step ? Look::layers : Look::digests; });
      CHECK(begin == (step - 1) / 4 * 4);  // the newest checkpoint before it
      const auto& view = replayed.go_to(step);
      CHECK(view.step == step);
      CHECK(view.bits.difference(kept(folder, step)) == "");
      CHECK(says(vernier::agreement(replayed, view), "same bits"));
    }
    replayed.leave();
    CHECK(listing(folder) == before);
  }
}

TEST_CASE("replay: the ranges of a step are those of its tensors") {
  RunFolder run(base);
  REQUIRE(run.train({"--set", "checkpoint.every=1"}) == 0);
  const std::atomic<int> stop = 0;
  vernier::ReplayedRun replayed(run.at("out"), built_plugins(), stop);
  replayed.start_before(5, [](std::int64_t) { return Look::layers; });
  const auto checkpoints = run.at("out") / "checkpoints";
  const auto before = vernier::read_checkpoint(checkpoints / "step-00000004").model;
  const auto saved = vernier::read_checkpoint(checkpoints / "step-00000005").model;
  const auto& view = replayed.go_to(5);
  REQUIRE(view.layers.size() == 2);
  double squares = 0;
  for (const auto& layer : view.layers) {
    CAPTURE(layer.layer);
    squares += sum_of_squares(layer.gradient);
    const auto weight = before.tensor(layer.layer + ".weight"), bias = before.tensor(layer.layer + ".bias");
    const auto all = torch::cat({weight.flatten(), bias.flatten()}).to(torch::kFloat64);
    const auto after = saved.tensor(layer.layer + ".weight"), bias_after = saved.tensor(layer.layer + ".bias");
    CHECK(layer.weight.rms == doctest::Approx(all.square().mean().sqrt().item<double>()));
    const auto update = torch::cat({(after - weight).flatten(), bias_after - bias}).to(torch::kFloat64);
    CHECK(layer.update.rms == doctest::Approx(update.square().mean().sqrt().item<double>()));
    CHECK(layer.update.amax == doctest::Approx(update.abs().max().item<double>()));
    CHECK(layer.activation.elements == 12 * weight.size(0));  // both micro-batches
  }
  CHECK(std::sqrt(squares) <= 0.5 * (1 + 1e-6));  // clip_norm leaves such gradients
}

TEST_CASE("replay: replay prints a step, another precision beside it, and one layer over many steps") {
  RunFolder run(base);
  REQUIRE(run.train() == 0);
  REQUIRE(run.call({"replay", "out", "--step", "7"}) == 0);
  CHECK(says(run.out, "step 7 of out: from the checkpoint of step 4, 2 steps again before it"));
  CHECK(says(run.out, "same bits: loss "));
  CHECK(std::regex_search(run.out, std::regex("layers\\.0( +[0-9.e+-]+){7}\n")));
  REQUIRE(run.call({"replay", "out", "--step", "2", "--precision", "bf16"}) == 0);
  CHECK(says(run.out, "from the beginning, 1 step again before it"));
  CHECK(says(run.out, "side by side: fp32 loss "));
  CHECK(says(run.out, "gradient of"));
  REQUIRE(run.call({"replay", "out", "--step", "3..9", "--watch", "layers.1"}) == 0);
  for (int step = 3; step <= 9; ++step) {
    const auto loss = line_of(run.at("out") / "losses.jsonl", step)["loss"].get<double>();
    char text[64];
    std::snprintf(text, sizeof text, "\n%-4d  %.6g ", step, loss);
    CHECK_MESSAGE(says(run.out, text), text);
  }
}

namespace {

std::vector<int> samples_of(RunFolder& run, const std::string& steps) {
  REQUIRE_MESSAGE(run.call({"data", "out", "--step", steps}) == 0, run.err);
  std::vector<int> samples;
  for (std::istringstream lines(run.out); std::getline(lines, run.out);) {
    if (run.out.starts_with("  sample ")) samples.push_back(std::stoi(run.out.substr(9)));
  }
  return samples;
}

std::vector<int> counted(int from, int to) {
  std::vector<int> all(static_cast<std::size_t>(to - from));
  std::iota(all.begin(), all.end(), from);
  return all;
}

// Trains all 80 samples in their order, and compares the samples of some steps.
void check_samples_in_order(const Words& start, const Words& more) {
  RunFolder run(base);
  auto words = start;
  words.insert(words.end(), {"run.toml", "--set", "task.validation=0", "--set", "task.order=sequential"});
  words.insert(words.end(), more.begin(), more.end());
  REQUIRE_MESSAGE(run.call(words) == 0, run.err);
  CHECK(samples_of(run, "3") == counted(24, 36));
  CHECK(samples_of(run, "7") == counted(72, 80));
  CHECK(samples_of(run, "8") == counted(0, 12));
}

}  // namespace

TEST_CASE("replay: data names the samples of a step of a run of two ranks" * doctest::test_suite("distributed")) {
  check_samples_in_order({"launch", "-n", "2"}, {"--set", "distributed.use=ddp"});
}

TEST_CASE("replay: data names the samples of a step, and through a rewind" * doctest::test_suite("data")) {
  const Words all_samples = {"--set", "task.validation=0"};
  RunFolder shuffled(base);
  REQUIRE(shuffled.train(all_samples) == 0);
  auto epoch = samples_of(shuffled, "1..7");
  CHECK(epoch != counted(0, 80));
  std::ranges::sort(epoch);
  CHECK(epoch == counted(0, 80));

  const Words in_order = {"--set", "task.validation=0", "--set", "task.order=sequential"};
  check_samples_in_order({"train"}, {});
  // The batch that spiked is passed over when the run goes back, so its place has the next one.
  RunFolder rewound(
      std::string(base) +
      "[[callback]]\nuse = 'inject'\nat_batch = 6\nwhat = 'nan'\nlayer = 'layers.1'\n[[callback]]\nuse = 'recovery'\n"
      "non_finite = ['rewind']\n");
  REQUIRE_MESSAGE(rewound.train(in_order) == 0, rewound.err);
  CHECK(samples_of(rewound, "5") == counted(48, 60));

  RunFolder table(base);
  table.folder.write("rows.csv", "x,y\n1,2\n2,4\n3,6\n4,8\n");
  REQUIRE_MESSAGE(table.train({"--set",
                               "task={use=\"tabular\", data=\"rows.csv\", target=\"y\", validation_share=0, "
                               "batch_size=2, order=\"sequential\"}"}) == 0,
                  table.err);
  REQUIRE(table.call({"data", "out", "--step", "2"}) == 0);
  CHECK(says(table.out, "step 2: 2 samples\n  sample 2 ("));
  CHECK(says(table.out, "line 4)\n  sample 3 ("));
  for (const Words& wrong : {Words{"data", "out"},
                             {"data", "out", "--step", "99"},
                             {"data", "run.toml", "--step", "1"},
                             {"data", "out", "--step", "0"}}) {
    CHECK(table.call(wrong) == 2);
    CHECK(is_one_line(table.err));
  }
}

TEST_CASE("replay: a step of a compiled run is found again, and what the engine changed is named" *
          doctest::test_suite("compile")) {
  RunFolder run(base);
  ::setenv("XDG_CACHE_HOME", run.folder.path().c_str(), 1);
  REQUIRE(run.train({"--set", "run.engine=compiled"}) == 0);
  CHECK(says(run.err, "engine: a recording computes forward and backward"));
  for (const auto* const step : {"2", "7", "12"}) {
    CAPTURE(step);
    REQUIRE_MESSAGE(run.call({"replay", "out", "--step", step}) == 0, run.err);
    // A replay begins by the operators, which add up in another order than the program.
    std::smatch losses;
    if (std::regex_search(run.out, losses, std::regex("other bits: loss (\\S+) .*losses.jsonl has ([^;]+);"))) {
      CHECK(std::stod(losses[1]) == doctest::Approx(std::stod(losses[2])).epsilon(1e-5));
      CHECK(says(run.out, "compiled programs"));
    } else {
      CHECK_MESSAGE(says(run.out, "same bits: loss"), run.out);
    }
  }
  REQUIRE(run.train({"--set", "run.output=operators"}) == 0);
  CHECK(run.call({"compare", "out", "operators"}) == 0);
  CHECK(run.call({"replay", "out", "--against", "operators"}) == 4);
  CHECK_MESSAGE(says(run.out, "first difference"), run.out);
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("replay: a watched layer is printed step by step, so that a stopped replay has shown what it had") {
  RunFolder run(base);
  REQUIRE(run.train({"--set", "run.steps=2000", "--set", "checkpoint.use=none"}) == 0);
  Program program({"replay", "out", "--step", "1..2000", "--watch", "layers.1"}, run.folder.path());
  REQUIRE(program.wait_until([&] { return says(program.out(), "\n2     "); }));
  program.send(SIGINT);
  CHECK(program.wait() != 0);
  CHECK_FALSE(says(program.out(), "\n2000  "));
}

TEST_CASE("replay: a step that became NaN names its origin, beside a flight recorder too") {
  for (const std::string recorder : {"", "[[callback]]\nuse = 'flight_recorder'\n"}) {
    CAPTURE(recorder);
    RunFolder run(
        base + recorder +
        "[[callback]]\nuse = 'inject'\nat_step = 6\nwhat = 'nan'\nwhere = 'activation'\nlayer = 'layers.1'\n");
    run.train();
    REQUIRE(run.call({"replay", "out", "--step", "6"}) == 0);
    CHECK(says(run.out, "same bits: loss nan"));
    CHECK(says(run.out, "layers.1"));
    CHECK(says(run.out, "injected"));
    CHECK(says(run.out, " nan"));
  }
}

TEST_CASE("replay: against another run, the first step, layer and operation that differ are named") {
  struct Other {
    std::string change;                     // the change of the second run
    std::vector<std::string> sets, answer;  // the settings, and the words that are printed
  };
  const std::string fault = "[[callback]]\nuse = 'inject'\nat_step = 7\nwhat = 'spike'\nfactor = 1.001\n";
  const std::vector<Other> others = {
      {fault + "where = 'activation'\nlayer = 'layers.1'\n",
       {},
       {"the last step that is equal in them: 6", "step 7, forward, layers.1: linear"}},
      {fault + "where = 'gradient'\nlayer = 'layers.0'\n", {}, {"step 7, backward, gradient of layers.0.weight: "}},
      {"", {"--set", "optimizer.weight_decay=0.5"}, {"step 1, update of layers.0.bias by optimizer/adamw: "}},
      {"", {"--set", "precision.use=bf16"}, {"step 1, forward, layers.0: linear in Float and in BFloat16"}},
      {"", {"--set", "task.order=sequential"}, {"step 1, the batch: "}}};
  RunFolder run(base);
  REQUIRE(run.train() == 0);
  for (const auto& other : others) {
    CAPTURE(other.change);
    CAPTURE(other.sets);
    std::ofstream(run.at("other.toml")) << base << other.change;
    std::vector<std::string> words = {"train", "other.toml", "--set", "run.output=other"};
    words.insert(words.end(), other.sets.begin(), other.sets.end());
    REQUIRE(run.call(words) == 0);
    CHECK(run.call({"replay", "out", "--against", "other"}) == 4);
    CAPTURE(run.out);
    for (const auto& part : other.answer) CHECK(says(run.out, part));
    fs::remove(run.at("other") / "digests.jsonl");  // found by replaying alone, then
    CHECK(run.call({"replay", "out", "--against", "other"}) == 4);
    CHECK(says(run.out, other.answer.back()));
    fs::remove_all(run.at("other"));
  }
  std::ofstream(run.at("other.toml")) << base;
  REQUIRE(run.call({"train", "other.toml", "--set", "run.output=same"}) == 0);
  CHECK(run.call({"replay", "out", "--against", "same"}) == 0);
  CHECK(says(run.out, "no difference in 12 steps"));
}

TEST_CASE("replay: what cannot be gone to is refused in one line") {
  RunFolder run(base);
  REQUIRE(run.train({"--set", "run.steps=4"}) == 0);
  fs::create_directories(run.at("empty"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{"out"}, "say which step of it"},
      {{"out", "--step", "5"}, "out: the run has 4 steps"},
      {{"out", "--step", "0"}, "the first step is 1"},
      {{"out", "--step", "two"}, "write a step"},
      {{"out", "--step", "3..2"}, "its end is before its beginning"},
      {{"out", "--step", "1..2"}, "--watch LAYER"},
      {{"out", "--step", "1..2", "--watch", "layers.2"}, "did you mean 'layers."},
      {{"out", "--step", "1..2", "--watch", "layers.0", "--precision", "bf16"}, "say --step N alone"},
      {{"out", "--against", "empty"}, "empty: this is not a folder of a run"},
      {{"empty", "--step", "1"}, "is not a run"}};
  for (const auto& [words, part] : calls) {
    CAPTURE(words);
    std::vector<std::string> all = {"replay"};
    all.insert(all.end(), words.begin(), words.end());
    CHECK(run.call(all) == 2);
    CHECK_MESSAGE(says(run.err, part), run.err);
    CHECK(is_one_line(run.err));
  }
  CHECK(run.call({"train", "run.toml", "--step", "3"}) == 2);
  CHECK(says(run.err, "unrecognised option '--step'"));
}

}  // namespace replayed_run_test
