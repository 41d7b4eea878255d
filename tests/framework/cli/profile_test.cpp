// callback/profiler and `vernier profile`: what the trace and the table have, and that the run's numbers stay.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "limited_files.h"
#include "run_folder.h"
#include "thrown.h"

namespace profile_test {

namespace {

constexpr const char* base = R"([run]
steps = 9
seed = 3
threads = 1
device = "cpu"
output = "out"
[task]
use = "mlp"
samples = 64
[optimizer]
use = "sgd"
learning_rate = 0.1
[checkpoint]
use = "none"
[[callback]]
use = "clip_norm"
max_norm = 0.5
)";

constexpr const char* profiler = "[[callback]]\nuse = 'profiler'\nfirst_step = 3\nsteps = 4\nrows = 100\n";

// Reads the trace as another program does: milliseconds by operator.
std::map<std::string, double> operators_in(const nlohmann::json& trace) {
  std::map<std::string, double> all;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == "cpu_op") all[event.at("name")] += event.at("dur").get<double>() * 1e-3;
  }
  return all;
}

int count(const nlohmann::json& trace, const std::string& name) {
  int found = 0;
  for (const auto& event : trace.at("traceEvents")) found += event.value("name", "") == name && event.contains("dur");
  return found;
}

// The columns of a row of the table; empty if it has no such row.
std::vector<double> row_of(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + " ")) continue;
    std::istringstream words(line.substr(name.size()));
    std::vector<double> numbers;
    for (double number = 0; words >> number;) numbers.push_back(number);
    return numbers;
  }
  return {};
}

}  // namespace

TEST_CASE("profiler: trace and table have the steps, the listeners, the layers and the operators") {
  RunFolder run(std::string(base) + profiler);
  REQUIRE(run.train() == 0);
  const auto trace = nlohmann::json::parse(read_text(run.at("out") / "profile.json"));
  const auto table = read_text(run.at("out") / "profile.txt");
  CAPTURE(table);
  CHECK(table.starts_with("steps 3 to 6: "));
  CHECK(count(trace, "callback/clip_norm at GradientsReady") == 4);
  CHECK(count(trace, "layer layers.0") == 4);
  for (const char* part : {"step: data_wait", "step: forward", "step: backward", "step: update"}) {
    CAPTURE(part);
    CHECK(count(trace, part) >= 4);
    CHECK(row_of(table, part).size() >= 2);
  }
  CHECK(row_of(table, "layer layers.0").empty());  // layers have a list of their own
  for (const char* layer : {"layers.0", "layers.1"}) {
    const auto row = row_of(table, layer);
    REQUIRE(row.size() >= 3);  // both, forward, backward
    CHECK(row[0] == doctest::Approx(row[1] + row[2]).epsilon(0.01));
    CHECK(row[1] > 0);
    CHECK(row[2] > 0);
  }
  double operators = 0;
  for (const auto& [name, milliseconds] : operators_in(trace)) {
    const auto row = row_of(table, name.size() > 80 ? name.substr(0, 77) + "..." : name);
    CAPTURE(name);
    REQUIRE(row.size() >= 3);  // self, total, calls
    // The trace has an operation of a layer twice: as it is intercepted, and as it is passed on.
    if (name != "aten::linear") CHECK(std::abs(row[1] - milliseconds / 4) <= 0.001 + 0.01 * milliseconds);
    CHECK(row[0] <= row[1] + 0.001);
    operators += row[0];
  }
  CHECK(operators > 0);
  CHECK(row_of(table, "aten::linear").at(2) == 2);  // calls in a step
}

TEST_CASE("profiler: the numbers of the run are those without it") {
  RunFolder with(std::string(base) + profiler), without(base);
  REQUIRE(with.train() == 0);
  REQUIRE(without.train() == 0);
  CHECK(with.summary()["digest"] == without.summary()["digest"]);
}

TEST_CASE("profiler: a run that ends while it records still writes what there is") {
  RunFolder run(std::string(base) + profiler);
  REQUIRE(run.train({"--set", "run.steps=4"}) == 0);
  CHECK(read_text(run.at("out") / "profile.txt").starts_with("steps 3 to 4: "));
  REQUIRE(run.call({"train", "run.toml", "--set", "run.steps=2", "--set", "run.output=short"}) == 0);
  CHECK(read_text(run.at("short") / "profile.txt").empty());
  CHECK(run.call({"train", "run.toml", "--set", "callback.profiler.nvtx=true", "--set", "run.output=gpu"}) != 0);
  CHECK(says(run.err, "nvtx = true needs a GPU"));
}

TEST_CASE("profiler: vernier profile prints the table and leaves the trace alone behind") {
  RunFolder run(base);
  REQUIRE(run.call({"profile", "run.toml", "--steps", "5", "--output", "t.json"}) == 0);
  CHECK(says(run.out, "steps 5 to 9: "));
  CHECK(says(run.out, "callback/clip_norm at GradientsReady"));
  CHECK(nlohmann::json::parse(read_text(run.at("t.json"))).contains("traceEvents"));
  CHECK(!std::filesystem::exists(run.at("out")));
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--steps", "0"}, "--steps must be an integer from 1"},
      {{"--steps", "many"}, "--steps must be an integer from 1"},
      {{"--output", "nowhere/t.json"}, "nowhere/t.json: there is no folder nowhere"},
      {{"--floor"}, "--floor measures the machine and no run; leave the files out"},
      {{"--set", "run.steps=4"}, "the run ended after 4 steps"}};
  for (const auto& [words, part] : refused) {
    CAPTURE(words);
    std::vector<std::string> all = {"profile", "run.toml"};
    all.insert(all.end(), words.begin(), words.end());
    CHECK(run.call(all) != 0);
    CHECK_MESSAGE(says(run.err, part), run.err);
    CHECK(is_one_line(run.err));
  }
}

TEST_CASE("profiler: a trace that does not fit on the disk is an error, and no success") {
  if (!can_limit_files) return;
  RunFolder run(base);
  CHECK(run.call({"profile", "run.toml", "--steps", "5", "--output", "t.json"}, &limit_files<4096>) != 0);
  CHECK_MESSAGE(says(run.err, "t.json: cannot be written"), run.err);
}

}  // namespace profile_test
