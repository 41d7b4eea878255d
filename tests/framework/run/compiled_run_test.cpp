// Runs with [run] engine = "compiled": they learn what runs by operators learn, and go on with the same bits.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/fused_kernels.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device_graph.h"
#include "log_lines.h"
#include "long_form.h"
#include "small_run.h"

namespace compiled_run_test {

namespace {

constexpr const char* in_use = "engine: a recording computes forward and backward of";
const std::string not_compiled = "engine: the operators compute forward and backward, without a recording: ";

const std::string common = R"(
[run]
steps = 14
validate_every = 5
[optimizer]
use = "adamw"
learning_rate = 0.01
)";
const std::string mlp = "[task]\nuse = \"mlp\"\nbatch_size = 12\n";

// Programs in one folder of this process, and Vernier's kernels, as in a run of the command line.
struct Cache {
  Cache() {
    static const TemporaryFolder folder;
    ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
    vernier::use_fused_kernels(true);
  }
  ~Cache() {
    ::unsetenv("XDG_CACHE_HOME");
    vernier::use_fused_kernels(false);
  }
};

std::string rents() {
  std::string text = "rooms,floor,city,heating,rent\n";
  for (int i = 0; i < 200; ++i) {
    text += std::to_string(1 + i % 5) + "," + std::to_string(i % 7) + (i % 3 == 0 ? ",Bern" : ",Basel") +
            (i % 4 == 0 ? ",gas," : ",oil,") + std::to_string(400 + 300 * (i % 5) + 20 * (i % 7) + i % 11) + "\n";
  }
  return text;
}

struct Result {
  std::string digest, lines;
  std::vector<torch::Tensor> start, weights;
};

// rounded: multiplies all weights before the first step, as a rounding would.
Result trained(const std::vector<std::string>& tables, bool is_compiled, double rounded = 1) {
  const TemporaryFolder folder;
  const LogLines log;
  SmallRun run(from_toml(tables), folder.path().string(), built_plugins(), 1,
               is_compiled ? vernier::compiled_graphs() : nullptr, vernier::Recordings::faster);
  for (const auto& parameter : run.run.parameters) parameter.model.detach().mul_(rounded);
  Result result;
  for (const auto& parameter : run.run.parameters) result.start.push_back(parameter.model.detach().clone());
  run.train();
  result.digest = run.digest();
  for (const auto& line : LogLines::lines()) result.lines += line + "\n";
  for (const auto& parameter : run.run.parameters) result.weights.push_back(parameter.model.detach().clone());
  return result;
}

}  // namespace

TEST_CASE("compiled runs: weights are close to those of a run by operators") {
  const Cache cache;
  const TemporaryFolder data;
  const auto table = data.write("rents.csv", rents());
  const std::string tabular = "[task]\nuse = \"tabular\"\ndata = '" + table + "'\nbatch_size = 16\nhidden = [16, 16]\n";
  const std::string micro = "[accumulation]\nmicro_batches = 3\n";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"mlp", {mlp}},
      {"the last batch of an epoch", {mlp + "samples = 50\n", "[run]\nsteps = 40\n"}},
      // By sgd: the gradients of biases before the normalisation are rounding errors, which Adam would scale up.
      {"batch normalisation", {mlp + "batch_norm = true\n", "[optimizer]\nuse = \"sgd\"\n"}},
      {"uneven ones", {mlp, "[accumulation]\nmicro_batches = 5\n"}},
      {"micro-batches, clipping and an average of the weights",
       {mlp, micro, "[[callback]]\nuse = \"clip_norm\"\nmax_norm = 0.1\n[[callback]]\nuse = \"ema\"\n"}},
      {"a gradient used twice", {mlp, "[[callback]]\nuse = \"sam\"\n"}},
      {"layers that are trained later",
       {mlp, "[[callback]]\nuse = \"unfreeze\"\ngroup = [{ from = 8, match = [\"layers.0.*\"] }]\n"}},
      {"rents", {tabular + "target = \"rent\"\n"}},
      {"rents, with blocks", {tabular + "target = \"rent\"\nresidual = true\n"}},
      {"gpt",
       {"[task]\nuse = \"gpt\"\ndata = ['" + table +
            "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\nbatch_size = 4\nvalidation = 0\n",
        "[optimizer]\nuse = \"sgd\"\n"}},
      {"lstm",
       {"[task]\nuse = \"sequence\"\nkind = \"forecast\"\ndata = '" + table +
        ":rooms,floor,rent'\ncontext = 8\nwidth = 24\nbatch_size = 16\n"}},
      {"another optimizer at step 8",
       {mlp, "[[callback]]\nuse = \"switch\"\nat_step = 8\nto = { optimizer = { use = \"sgd\" } }\n"}},
  };
  for (const auto& [name, tables] : cases) {
    CAPTURE(name);
    std::vector<std::string> all = {common};
    all.insert(all.end(), tables.begin(), tables.end());
    if (is_long()) all.emplace_back("[run]\nsteps = 200\n");
    const auto expected = trained(all, false), result = trained(all, true);
    // Training makes a rounding larger: the long form measures how much. A wrong gradient moves the weights elsewhere
    // by about as far as training moves them, so the bound stays below a tenth of that way.
    const auto other = is_long() ? trained(all, false, 1 + 0x1p-23) : expected;
    CHECK_MESSAGE(result.lines.find(in_use) != std::string::npos, result.lines);
    CHECK_MESSAGE(result.lines.find(not_compiled) == std::string::npos, result.lines);
    REQUIRE(result.weights.size() == expected.weights.size());
    double way = 0;
    for (std::size_t i = 0; i < expected.weights.size(); ++i) {
      way = std::max(way, (expected.weights[i] - expected.start[i]).abs().max().item<double>());
    }
    CAPTURE(way);
    for (std::size_t i = 0; i < result.weights.size(); ++i) {
      const auto apart = [&](const auto& one) {
        return (one.weights[i] - expected.weights[i]).abs().max().template item<double>();
      };
      CHECK(apart(result) < std::min(2e-4 + 20 * apart(other), 0.1 * way));
    }
  }
}

TEST_CASE("compiled runs: what is not compiled is named, and trains by the operators") {
  const Cache cache;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"aten::bernoulli_ draws random numbers", {mlp + "dropout = 0.2\n"}},
      {"computes in BFloat16", {mlp, "[precision]\nuse = \"bf16\"\n"}},
      {"these plugins do not allow it: precision/fp8", {mlp, "[precision]\nuse = \"fp8\"\n"}},
      {"the compiler '/nowhere/c++' cannot be started: No such file or directory; install g++", {mlp}},
  };
  for (const auto& [reason, tables] : cases) {
    CAPTURE(reason);
    std::vector<std::string> all = {common};
    all.insert(all.end(), tables.begin(), tables.end());
    const bool has_no_compiler = reason.find("/nowhere") != std::string::npos;
    if (has_no_compiler) ::setenv("CXX", "/nowhere/c++", 1);
    const auto result = trained(all, true), expected = trained(all, false);
    if (has_no_compiler) ::unsetenv("CXX");
    CHECK_MESSAGE(result.lines.find(not_compiled) != std::string::npos, result.lines);
    CHECK_MESSAGE(result.lines.find(reason) != std::string::npos, result.lines);
    CHECK(result.lines.find(in_use) == std::string::npos);
    CHECK(result.digest == expected.digest);
  }
}

TEST_CASE("compiled runs: a run that was stopped goes on with the same bits") {
  const Cache cache;
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> cases = {
      {common, mlp},
      {common, mlp + "samples = 50\n[accumulation]\nmicro_batches = 3\n"},
      {common, mlp, "[[callback]]\nuse = \"unfreeze\"\ngroup = [{ from = 7, match = [\"layers.0.*\"] }]\n"},
      {common, mlp, "[precision]\nuse = \"fp8\"\n",  // it allows no program
       "[[callback]]\nuse = \"switch\"\nat_step = 3\nto = { precision = { use = \"fp32\" } }\n"},
  };
  int number = 0;
  const auto started = [&](const std::vector<std::string>& tables, const std::string& output) {
    std::filesystem::create_directories(output);
    return std::make_unique<SmallRun>(from_toml(tables), output, built_plugins(), 1, vernier::compiled_graphs(),
                                      vernier::Recordings::faster);
  };
  for (const auto& tables : cases) {
    const auto whole = started(tables, folder / ("whole" + std::to_string(number)));
    whole->train();
    for (const int step : {2, 3, 4, 5, 6, 7, 9}) {
      CAPTURE(number);
      CAPTURE(step);
      const auto output = folder / c10::str("halves-", number, "-", step);
      {
        const auto first = started(tables, output);
        first->stop_after(step);
        first->train();
      }
      const LogLines log;
      const auto second = started(tables, output);
      REQUIRE(second->resume());
      second->train();
      CHECK(LogLines::count(in_use) >= 1);
      CHECK(second->digest() == whole->digest());
    }
    number += 1;
  }
}

TEST_CASE("compiled runs: a run is not resumed by another program") {
  const Cache cache;
  const TemporaryFolder folder, tools;
  const auto config = from_toml({common, mlp});
  const auto started = [&](const char* name, bool is_compiled) {
    std::filesystem::create_directories(folder / name);
    return std::make_unique<SmallRun>(config, folder / name, built_plugins(), 1,
                                      is_compiled ? vernier::compiled_graphs() : nullptr, vernier::Recordings::faster);
  };
  const auto stopped = [&](const char* name, bool is_compiled) {
    const auto run = started(name, is_compiled);
    run->stop_after(8);
    run->train();
  };
  stopped("operators", false);
  stopped("compiled", true);
  CHECK_THROWS_WITH_AS(started("operators", true)->resume(), doctest::Contains("may now be by a compiled program"),
                       vernier::Error);
  CHECK_THROWS_WITH_AS(started("compiled", false)->resume(), doctest::Contains("are now by the operators"),
                       vernier::Error);
  const auto compiler = tools.write("another-c++", "#!/bin/sh\nexec c++ \"$@\"\n");
  std::filesystem::permissions(compiler, std::filesystem::perms::owner_all);
  ::setenv("CXX", compiler.c_str(), 1);
  const auto other = started("compiled", true);
  REQUIRE(other->resume());
  CHECK_THROWS_WITH_AS(other->train(), doctest::Contains("this processor, compiler and version have"), vernier::Error);
  const auto passes = vernier::recorded_passes(vernier::compiled_graphs(), vernier::Recordings::faster);
  passes->begin("a plugin does not allow it");
  CHECK_THROWS_WITH_AS(passes->load("compiled\n12/6,12,8 3 3 0 0123456789abcdef -\n", false),
                       doctest::Contains("does not stand for the operators again: a plugin does not allow it; mend"),
                       vernier::Error);
  ::setenv("CXX", "no-such-compiler", 1);
  stopped("without", true);
  ::unsetenv("CXX");
  const LogLines log;
  const auto without = started("without", true);
  REQUIRE(without->resume());
  without->train();
  CHECK(LogLines::count("the run that is resumed had given it up") == 1);
  CHECK(LogLines::count(in_use) == 0);
}

}  // namespace compiled_run_test
