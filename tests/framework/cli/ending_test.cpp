// The program, where a run ends before its last planned step: what a person reads, and how the run goes on.
#include <doctest/doctest.h>

#include "run_folder.h"
#include "thrown.h"

namespace ending_test {

namespace {

// A run of a fraction of a second, whose validations do not improve: its learning rate is 0.
constexpr const char* idle = R"([run]
steps = 50
device = "cpu"
threads = 1
output = "out"
validate_every = 2
[task]
use = "mlp"
samples = 64
[optimizer]
use = "sgd"
learning_rate = 0.0
[[callback]]
use = "early_stopping"
patience = 3
)";

const std::string why = "callback/early_stopping: validation_loss has not improved on ";

}  // namespace

TEST_CASE("ending: early stopping ends a run well, resuming says so, and more steps train on") {
  RunFolder place(idle);
  CHECK(place.train() == 0);
  CHECK(says(place.out, "finished early by " + why));
  CHECK(says(place.out, "done after 8 steps"));
  auto summary = place.summary();
  CHECK(summary["ended_by"] == "finished");
  CHECK(std::string(summary["finished_by"]).starts_with(why));
  CHECK(summary["steps"] == 8);
  CHECK(place.train({"--resume"}) == 0);
  CHECK(says(place.out, "out was finished after 8 steps by " + why));
  CHECK(says(place.out, "; to train on, raise run.steps or run.epochs\n"));
  CHECK(place.summary() == summary);
  CHECK(place.train({"--resume", "--set=run.steps=60"}) == 0);
  CHECK(says(place.out, "resumed after step 8\n"));
  CHECK(place.summary()["steps"] == 14);  // its patience begins again
  CHECK(place.train(
            {"--resume", "--set=run.steps=60", "--set=callback.early_stopping.patience=900", "--allow-inexact"}) == 0);
  CHECK(place.summary()["steps"] == 14);
  std::filesystem::remove(place.at("out/summary.json"));
  CHECK(place.train({"--resume", "--set=run.steps=60"}) == 0);  // it was killed before it wrote the summary
  CHECK(place.summary()["ended_by"] == "finished");
  CHECK(place.summary()["steps"] == 14);
}

TEST_CASE("ending: [run] time_limit ends a run with a checkpoint, its own exit status, and a line to resume it") {
  RunFolder place(idle);
  const std::vector<std::string> endless = {"--set=run.steps=1000000000", "--set=run.validate_every=0"};
  auto limited = endless;
  limited.push_back("--set=run.time_limit=1s");
  CHECK(place.train(limited) == 124);
  CHECK(says(place.out, "the time of [run] time_limit is over\nstopped after "));
  CHECK(says(place.out, "resume with:  vernier train run.toml"));
  const auto summary = place.summary();
  CHECK(summary["ended_by"] == "time_limit");
  const std::int64_t steps = summary["steps"];
  CHECK(steps > 0);
  CHECK(place.train({"--set=run.steps=" + std::to_string(steps + 5), "--set=run.validate_every=0", "--resume"}) == 0);
  CHECK(says(place.out, "resumed after step " + std::to_string(steps) + "\n"));
  CHECK(place.summary()["ended_by"] == "done");
  CHECK(place.summary()["steps"] == steps + 5);
}

TEST_CASE("ending: a time that is over before the first step still gets one step done") {
  RunFolder place(idle);
  CHECK(place.train({"--set=run.time_limit=1s", "--set=task.samples=3000000", "--set=run.steps=1000000000",
                     "--set=run.validate_every=0"}) == 124);
  const std::int64_t steps = place.summary()["steps"];
  CHECK(steps > 0);
}

TEST_CASE("ending: a time that is none is refused") {
  RunFolder place(idle);
  CHECK(place.train({"--set=run.time_limit=2 hours"}) == 2);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, "`time_limit` is \"2 hours\", and must be a time such as \"2h30m\" or \"90m\""));
}

}  // namespace ending_test
