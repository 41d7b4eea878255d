// The program with the kernels that [run] chooses for a CPU: what is printed, saved and compared on resume.
#include <doctest/doctest.h>

#include <ATen/Context.h>

#include "run/prepared.h"
#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"

namespace kernels_test {

namespace {

constexpr const char* small = R"([run]
steps = 6
device = "cpu"
threads = 1
output = "out"
[task]
use = "mlp"
samples = 64
hidden = [64]
[optimizer]
use = "sgd"
[checkpoint]
use = "rolling"
every = 3
)";

}  // namespace

TEST_CASE("kernels: [run] matmul and fused are printed, and a resumed run has the same") {
  const std::string path = __builtin_cpu_is("intel") != 0 ? "plain" : "intel";
  RunFolder place(small);
  REQUIRE(place.train({"--set=run.matmul=intel", "--set=run.fused=false"}) == 0);
  CHECK(says(place.out, "  kernels       matmul=" + path + " ("));
  CHECK(says(place.out, ") fused=false\n"));
  const std::vector<std::string> more = {"--resume", "--set=run.steps=9", "--set=run.matmul=intel"};
  CHECK(place.train(more) == 2);
  const std::string before = "matmul = " + path + ", matmul_precision = highest, fused = ";
  CHECK(says(place.err, "[run] was " + before + "false and is " + before + "true"));
  auto right = more;
  right.push_back("--set=run.fused=false");
  CHECK(place.train(right) == 0);
  CHECK(place.summary()["steps"] == 9);
}

TEST_CASE("kernels: each path of products trains the same, up to rounding") {
  std::vector<double> losses;
  for (const char* path : {"plain", "intel"}) {
    RunFolder place(small);
    REQUIRE(place.train({std::string("--set=run.matmul=") + path}) == 0);
    losses.push_back(place.summary()["loss"]["final"]);
  }
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-5));
}

TEST_CASE("kernels: [run] deterministic is LibTorch's use_deterministic_algorithms, of this run alone") {
  const std::atomic<int> stop = 0;
  const auto never = [](auto&&...) { return false; };
  for (const std::string wanted : {"true", "false"}) {
    const auto config = from_toml({small, "[run]\ndeterministic = " + wanted + "\n"});
    const auto prepared = vernier::prepare(config, "name", built_plugins(), stop, never);
    CHECK(at::globalContext().deterministicAlgorithms() == (wanted == "true"));
  }
}

TEST_CASE("kernels: a word that is none is refused") {
  RunFolder place(small);
  CHECK(place.train({"--set=run.matmul=mkl"}) == 2);
  CHECK(says(place.err, "`matmul` is \"mkl\""));
  CHECK(place.train({"--set=run.matmul_precision=low"}) == 2);
  CHECK(says(place.err, "`matmul_precision` is \"low\""));
}

}  // namespace kernels_test
