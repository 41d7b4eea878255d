// `vernier advise`: what it may change, which candidates it measures, which it names, and what it writes.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "run_folder.h"
#include "thrown.h"
#include "tools/advise/advice.h"
#include "tools/advise/axes.h"
#include "tools/advise/search.h"

namespace advise_test {

namespace fs = std::filesystem;
using vernier::Axis;
using vernier::Choice;
using vernier::Measured;
using Words = std::vector<std::string>;

namespace {

// The schema of a table with one option of words, the first of which is its default.
nlohmann::json schema_with(const std::string& key, const Words& words) {
  const nlohmann::json steps = {{"type", {"integer", "string"}}, {"default", 0}};
  const nlohmann::json anything = {{"pattern", R"(\$\{)"}};
  const nlohmann::json option = {{"default", words.at(0)}, {"anyOf", {{{"enum", words}}, anything}}};
  return {{"properties", {{key, option}, {"steps", steps}}}};
}

vernier::AxisInputs inputs_of(const std::string& written, bool on_cpu = true, bool saves_memory = false) {
  vernier::AxisInputs inputs;
  inputs.written = toml::parse(written);
  auto run = schema_with("matmul", {"auto", "plain", "intel"});
  run.merge_patch(schema_with("matmul_precision", {"highest", "high", "medium"}));
  inputs.run = vernier::declared_in(run);
  inputs.task = vernier::declared_in(schema_with("recompute", {"none", "selective", "full"}));
  inputs.optimizer = vernier::declared_in(schema_with("state", {"float32", "bf16", "8bit"}));
  inputs.is_on_cpu = on_cpu;
  inputs.saves_memory = saves_memory;
  return inputs;
}

Words names_in(const Axis& axis) {
  Words names;
  for (const auto& option : axis.options) names.push_back(option.name);
  return names;
}

// The changes of one option of the axis, as lines.
Words changes(const Axis& axis, const std::string& option) {
  const auto found = std::ranges::find(axis.options, option, &vernier::Option::name);
  REQUIRE(found != axis.options.end());
  Words lines;
  for (const auto& [key, value] : found->settings) lines.push_back(key + "=" + value);
  return lines;
}

// A machine that never was: each option multiplies speed and memory, and some pairs do otherwise.
struct Machine {
  std::vector<Axis> axes;
  std::vector<std::vector<double>> speed, memory, loss;  // by axis and option
  double noise = 0, interplay = 0;
  mutable std::mt19937_64 random{1};

  explicit Machine(const std::vector<std::size_t>& sizes, unsigned seed = 1) {
    random.seed(seed);
    std::uniform_real_distribution<double> factor(0.5, 1.8), saving(0.5, 1.3);
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      axes.push_back({"axis " + std::to_string(axis), {}, ""});
      for (auto* table : {&speed, &memory, &loss}) table->push_back(std::vector<double>(sizes[axis], 1));
      for (std::size_t option = 0; option < sizes[axis]; ++option) {
        axes[axis].options.push_back({axis == 0 && option == 0 ? "fp32" : std::to_string(option), {}});
        if (option == 0) continue;
        speed[axis][option] = factor(random);
        memory[axis][option] = saving(random);
      }
    }
  }
  double true_speed(const Choice& choice) const {
    double all = 1000;
    for (std::size_t axis = 0; axis < choice.size(); ++axis) all *= speed[axis][choice[axis]];
    if (choice[0] != 0 && choice[1] != 0) all *= 1 - interplay;
    return all;
  }
  double true_memory(const Choice& choice) const {
    double all = 1;
    for (std::size_t axis = 0; axis < choice.size(); ++axis) all *= memory[axis][choice[axis]];
    return 1e9 + 1e9 * all;  // the libraries take as much as a step
  }
  void measure(Measured& measured) const {
    std::exponential_distribution<double> slowdown(noise > 0 ? 1 / noise : 1e9);
    double loss_factor = 1;
    for (std::size_t axis = 0; axis < axes.size(); ++axis) loss_factor *= loss[axis][measured.choice[axis]];
    measured.speeds.push_back(true_speed(measured.choice) / (1 + slowdown(random)));
    measured.peak_memory = true_memory(measured.choice);
    measured.losses = {5, 4 * loss_factor, 3 * loss_factor, 2 * loss_factor, 1 * loss_factor};
    measured.steps += 5;
  }
  std::vector<Choice> everything() const {
    std::vector<Choice> all = {Choice{}};
    for (const auto& axis : axes) {
      std::vector<Choice> longer;
      for (const auto& choice : all) {
        for (std::size_t option = 0; option < axis.options.size(); ++option) {
          longer.push_back(choice);
          longer.back().push_back(option);
        }
      }
      all = std::move(longer);
    }
    return all;
  }
  double best(double memory_limit) const {
    double found = 0;
    for (const auto& choice : everything()) {
      if (memory_limit == 0 || true_memory(choice) <= memory_limit) found = std::max(found, true_speed(choice));
    }
    return found;
  }
  vernier::Found search(const vernier::Limits& limits, int rounds, int* used = nullptr) const {
    int left = rounds;
    const vernier::Measurer measure_one = [&](Measured& measured) {
      measure(measured);
      --left;
    };
    Measured written;
    written.choice = vernier::as_written(axes);
    measure_one(written);
    const vernier::HasTime has_time = [&](std::size_t more) { return left >= static_cast<int>(more); };
    auto found = vernier::search(axes, written, limits, measure_one, has_time);
    if (used != nullptr) *used = rounds - left;
    return found;
  }
};

constexpr const char* small = R"([run]
steps = 100000
device = "cpu"
threads = 1
[task]
use = "mlp"
samples = 256
batch_size = 32
[optimizer]
use = "adamw"
learning_rate = 1e-3
[[callback]]
use = "clip_norm"
max_norm = 1.0
[[monitor]]
use = "jsonl"
)";

}  // namespace

TEST_CASE("advise: the first option of each axis is what the configuration says") {
  struct Case {
    std::string written;
    std::size_t axis;
    Words names;
  };
  const Words precisions = {"fp32", "bf16", "bf16-O2", "bf16-O3-stochastic", "fp16", "fp16-O2"};
  const Case cases[] = {
      {"", 0, precisions},
      {"[precision]\nuse = 'bf16'\nlevel = 'O2'\n",
       0,
       {"bf16-O2", "fp32", "bf16", "bf16-O3-stochastic", "fp16", "fp16-O2"}},
      {"[precision]\nuse = 'adaptive'\n",
       0,
       {"adaptive", "fp32", "bf16", "bf16-O2", "bf16-O3-stochastic", "fp16", "fp16-O2"}},
      {"[precision]\nuse = 'fp16'\n[scaler]\nuse = 'static'\n",
       0,
       {"fp16", "fp32", "bf16", "bf16-O2", "bf16-O3-stochastic", "fp16", "fp16-O2"}},
      {"", 2, {"matmul_precision=highest", "matmul_precision=medium"}},
      {"[run]\nmatmul_precision = 'medium'\n", 2, {"matmul_precision=medium", "matmul_precision=highest"}},
      {"", 3, {"micro_batches=1", "micro_batches=2", "micro_batches=4", "micro_batches=8"}},
      {"[accumulation]\nuse = 'fixed'\nmicro_batches = 4\n",
       3,
       {"micro_batches=4", "micro_batches=1", "micro_batches=2", "micro_batches=8"}},
      {"[accumulation]\nmicro_batches = 3\n",
       3,
       {"micro_batches=3", "micro_batches=1", "micro_batches=2", "micro_batches=4", "micro_batches=8"}},
      {"[accumulation]\nuse = 'fit'\n", 3, {"fit"}},
      {"[accumulation]\nmicro_batch_size = 8\n", 3, {"micro_batch_size=8"}},
      {"", 4, {"state=float32"}}};
  for (const auto& each : cases) {
    CAPTURE(each.written);
    CHECK(names_in(vernier::axes_of(inputs_of(each.written))[each.axis]) == each.names);
  }
  const auto with_memory = vernier::axes_of(inputs_of("", /*on_cpu=*/false, /*saves_memory=*/true));
  CHECK(names_in(with_memory[0]).back() == "fp8");
  CHECK(names_in(with_memory[2]) ==
        Words{"matmul_precision=highest", "matmul_precision=high", "matmul_precision=medium"});
  CHECK(names_in(with_memory[4]) == Words{"state=float32", "state=bf16", "state=8bit"});
  CHECK(names_in(with_memory[5]) == Words{"recompute=none", "recompute=selective", "recompute=full"});
  auto other_task = inputs_of("[task]\nuse = 'mlp'\n", true, true);
  other_task.task.clear();
  CHECK(vernier::axes_of(other_task)[5].note == "[task] use = \"mlp\" has no option `recompute`");
}

TEST_CASE("advise: an option sets what differs from the configuration, and no more") {
  struct Case {
    std::string written, option;
    Words settings;
  };
  const Case cases[] = {
      {"", "bf16", {"precision.use=\"bf16\""}},
      {"", "bf16-O2", {"precision.use=\"bf16\"", "precision.level=\"O2\""}},
      {"", "fp16", {"precision.use=\"fp16\"", "scaler.use=\"dynamic\""}},
      {"[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
       "bf16",
       {"precision.level=\"O1\"", "precision.rounding=\"nearest\""}},
      {"[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n", "fp32", {"precision.use=\"fp32\""}},
      {"[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\n", "fp16-O2", {"precision.level=\"O2\""}},
      {"[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\n",
       "bf16",
       {"precision.use=\"bf16\"", "scaler.use=\"none\""}}};
  for (const auto& each : cases) {
    CAPTURE(each.written);
    CAPTURE(each.option);
    CHECK(changes(vernier::axes_of(inputs_of(each.written))[0], each.option) == each.settings);
  }
  CHECK(vernier::overlay_of({{"precision.use", "\"bf16\""}, {"task.batch_size", "8"}, {"precision.level", "\"O2\""}}) ==
        "\n[precision]\nuse = \"bf16\"\nlevel = \"O2\"\n\n[task]\nbatch_size = 8\n");
}

TEST_CASE("advise: what it names is within 5 % of the best found by trying all") {
  struct Case {
    std::vector<std::size_t> sizes;
    double memory, noise, interplay;
    int rounds;
  };
  const Case cases[] = {{{6, 2, 4}, 0, 0, 0, 30},           {{6, 2, 4, 3, 3}, 0, 0, 0, 40},
                        {{6, 2, 4, 3, 3}, 1.6e9, 0, 0, 60}, {{6, 2, 4}, 0, 0.05, 0, 40},
                        {{6, 2, 4}, 0, 0, 0.3, 40},         {{6, 3, 4, 3, 3}, 1.6e9, 0, 0.3, 60}};
  for (const auto& each : cases) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
      CAPTURE(&each - cases);
      CAPTURE(seed);
      Machine machine(each.sizes, seed);
      machine.noise = each.noise;
      machine.interplay = each.interplay;
      const double best = machine.best(each.memory);
      int used = 0;
      const auto found = machine.search({each.memory, 0.01}, each.rounds, &used);
      CHECK(used <= each.rounds);
      if (best == 0) {  // nothing fits
        CHECK_FALSE(found.advice);
        continue;
      }
      REQUIRE(found.advice);
      const auto& choice = found.measured[*found.advice].choice;
      CHECK(machine.true_speed(choice) >= 0.95 * best);
      if (each.memory > 0) CHECK(machine.true_memory(choice) <= each.memory);
    }
  }
}

TEST_CASE("advise: a candidate whose loss goes away from float32's is not advice, alone or with others") {
  Machine machine({3, 3});
  machine.speed = {{1, 1.5, 1.2}, {1, 1.1, 0.9}};
  machine.loss[0][1] = 1.1;
  const auto found = machine.search({0, 0.01}, 30);
  REQUIRE(found.advice);
  CHECK(found.measured[*found.advice].choice == Choice{2, 1});
  for (const auto& each : found.measured) {
    CAPTURE(vernier::name_of(machine.axes, each.choice));
    const auto objection = vernier::objection_to(each, found.measured[found.float32], {0, 0.01});
    CHECK(says(objection, "its loss goes away from fp32's: 0.2 above it, and 0.05 is allowed") ==
          (each.choice[0] == 1));
    if (each.choice[0] == 1) CHECK(each.choice[1] == 0);  // and is in no combination
  }
}

TEST_CASE("advise: the rule about losses, memory and what did not train") {
  Measured float32;
  float32.losses = {4, 3, 2, 1, 0.5, 0.5, 0.5, 0.5};
  const auto with = [](std::vector<double> losses, double memory = 1e8) {
    Measured measured;
    measured.losses = std::move(losses);
    measured.peak_memory = memory;
    return measured;
  };
  struct Case {
    Measured measured;
    std::string says;  // "": no objection
  };
  Case cases[] = {{with({4, 3, 2, 1, 0.53, 0.53, 0.53, 0.53}), ""},
                  {with({9, 9, 9, 9, 0.5, 0.5, 0.5, 0.5}), ""},  // only the second half counts
                  {with({4, 3, 2, 1, 0.6, 0.6, 0.5, 0.5}), "its loss goes away"},
                  {with({4, 3, 2, 1, 0.1, 0.1, 0.1, 0.1}), ""},  // lower does no harm
                  {with({4, 3, 2, 1, NAN, 0.5, 0.5, 0.5}), "its loss goes away"},
                  {with({4, 3, 2, 1.5}), "its loss goes away"},  // the steps that both have are compared
                  {with({4, 9, 9}), ""},                         // too few to say
                  {with({4, 3, 2, 1}, 3e8), "needs 300 MB, more than 200 MB"}};
  for (const auto& each : cases) {
    CAPTURE(&each - cases);
    const auto objection = vernier::objection_to(each.measured, float32, {2e8, 0.01});
    CHECK(objection.empty() == each.says.empty());
    CHECK_MESSAGE(says(objection, each.says), objection);
  }
  Measured refused;
  refused.trouble = "refused: no";
  CHECK(vernier::objection_to(refused, float32, {}) == "refused: no");
  Measured emulated = with({4, 3, 2, 1});
  emulated.emulated = "fp8";
  CHECK(vernier::objection_to(emulated, float32, {}) == "fp8 is only emulated on this machine");
}

TEST_CASE("advise: with little time it says what it left out, and a small gain is not worth a change") {
  Machine machine({3, 3});
  machine.speed = {{1, 1.01, 0.9}, {1, 1.005, 0.9}};
  auto found = machine.search({0, 0.01}, 30);
  REQUIRE(found.advice);
  CHECK(found.measured[*found.advice].choice == Choice{0, 0});
  CHECK(found.left_out.empty());
  found = machine.search({0, 0.01}, 3);
  CHECK(found.measured.size() == 3);
  CHECK(found.measured[2].choice == Choice{0, 1});
  CHECK(found.left_out == Words{"2", "2"});
  // Float32 is never alone.
  found = machine.search({0, 0.01}, 1);
  REQUIRE(found.measured.size() == 2);
  CHECK(found.measured[1].choice == Choice{1, 0});
}

TEST_CASE("advise: writes an overlay that merges and trains, and never over a file") {
  RunFolder place(small);
  REQUIRE(place.call({"advise", "run.toml", "--batch", "64", "--seconds", "8", "--output", "a.toml"}) == 0);
  CHECK(says(place.err, "as written: "));
  for (const char* words : {"advice for run.toml on cpu, 1 thread, after ", "\nprecision ", "\nmicro-batches ",
                            "\nexpected ", " samples/s, ", "\nmeasured\ncandidate ", "\nas written ", "advised",
                            "there was no time to measure ", "\nwrote a.toml\n"}) {
    CHECK_MESSAGE(says(place.out, words), place.out);
  }
  const auto overlay = read_text(place.at("a.toml"));
  CHECK(says(overlay, "#   vernier train run.toml a.toml\n"));
  CHECK(says(overlay, "[task]\nbatch_size = 64\n"));
  CHECK(place.train({"a.toml", "--set", "run.steps=5", "--set", "run.output=out"}) == 0);
  CHECK(place.summary()["configuration"]["task"]["batch_size"] == 64);
  CHECK_FALSE(fs::exists(place.at("runs")));  // the measurements leave nothing
  CHECK(place.call({"advise", "run.toml", "--seconds", "1", "--output", "a.toml"}) == 2);
  CHECK(says(place.err, "a.toml: is there already; name another file, or replace it with --force"));
  CHECK(read_text(place.at("a.toml")) == overlay);
  // No checkpoint is kept, and an option of the run's own checkpoint is not in the way.
  CHECK(place.call({"advise", "run.toml", "--seconds", "1", "--output", "a.toml", "--force", "--json", "--quiet",
                    "--set=checkpoint.every=4"}) == 0);
  CHECK(place.err.empty());
  const auto json = nlohmann::json::parse(place.out);
  CHECK(json["measured"][0]["name"] == "as written");
  CHECK(json["measured"][0]["samples_per_second"].get<double>() > 0);
  CHECK(json["advice"]["name"].is_string());
  CHECK_FALSE(says(read_text(place.at("a.toml")), "batch_size"));
}

TEST_CASE("advise: the command in an overlay works when it is typed") {
  vernier::Advice advice;
  advice.files = {"my run.toml"};
  advice.sets = {"run.name=it's"};
  advice.plugin_paths = {"my plugins"};
  advice.found.measured.emplace_back();
  advice.found.advice = 0;
  CHECK(says(vernier::overlay_file(advice, "a b.toml"),
             "#   vernier train 'my run.toml' 'a b.toml' --set 'run.name=it'\\''s' --plugin-path 'my plugins'\n"));
}

TEST_CASE("advise: a limit that nothing keeps to gives no advice and no file") {
  RunFolder place(small);
  CHECK(place.call({"advise", "run.toml", "--memory", "1M", "--seconds", "1"}) == 4);
  CHECK(says(place.out, "there is none: every candidate has an objection"));
  CHECK(says(place.out, "MB, more than 1 MB"));
  CHECK_FALSE(fs::exists(place.at("advice.toml")));
}

TEST_CASE("advise: wrong calls end in one line") {
  RunFolder place(small);
  place.folder.write("bad.toml", "[run]\nsteps = 5\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\nmomentun = 1\n");
  struct Refused {
    Words arguments;
    std::string says;
  };
  const std::vector<Refused> refusals = {
      {{}, "name a TOML file"},
      {{"nosuch.toml"}, "nosuch.toml: there is no such file"},
      {{"bad.toml", "--quiet"}, "does not train as it is written: refused: bad.toml:7"},
      {{"run.toml", "--memory", "8X"}, "--memory 8X: write an amount"},
      {{"run.toml", "--memory=-8G"}, "--memory -8G: write an amount"},
      {{"run.toml", "--seconds", "0"}, "--seconds is 0, and must be from 1"},
      {{"run.toml", "--batch", "0"}, "--batch is 0, and must be from 1"},
      {{"run.toml", "--loss-gap", "2"}, "--loss-gap is 2, and must be from 0 to 1"},
      {{"run.toml", "--nosuch"}, "see vernier advise --help"}};
  for (const auto& refused : refusals) {
    CAPTURE(refused.says);
    Words words = {"advise"};
    words.insert(words.end(), refused.arguments.begin(), refused.arguments.end());
    CHECK(place.call(words) == 2);
    CHECK(is_one_line(place.err));
    CHECK_MESSAGE(says(place.err, refused.says), place.err);
    CHECK_FALSE(fs::exists(place.at("advice.toml")));
  }
}

}  // namespace advise_test
