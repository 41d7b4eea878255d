// Control::between_steps: when it is called, and that what is refused there leaves the run as it was.
#include <doctest/doctest.h>
#include <vernier/between_steps.h>
#include <vernier/error.h>

#include "small_run.h"
#include "thrown.h"

namespace between_steps_test {

namespace {

using vernier::BetweenSteps;
using vernier::Event;
using vernier::Run;

constexpr const char* base = R"([run]
steps = 6
validate_every = 3
[task]
use = "mlp"
samples = 64
[scaler]
use = "dynamic"
[optimizer]
use = "adamw"
[checkpoint]
every = 3
async = false
)";

vernier::Table roles(const std::string& toml) {
  return from_toml({toml});
}

// A run in which `look` is called between the steps, in the name of its optimizer.
struct Looked {
  explicit Looked(const std::string& folder, std::function<bool(Run&, BetweenSteps&)> look,
                  const std::string& more = "")
      : run(from_toml({base, more}), folder) {
    run.run.control->between_steps(*run.wiring->optimizer, [this, look = std::move(look)](BetweenSteps& between) {
      return look(run.run, between);
    });
  }
  SmallRun run;
};

std::string unchanged() {
  const TemporaryFolder folder;
  SmallRun run(from_toml({base}), folder.path().string());
  run.train();
  return run.digest();
}

}  // namespace

TEST_CASE("between steps: it is called before the first step and after each but the last, behind what a step leaves") {
  const TemporaryFolder folder;
  std::string order;
  Looked looked(folder.path().string(), [&](Run& run, BetweenSteps&) {
    const bool is_saved = run.step == 3 && std::filesystem::exists(folder.path() / "checkpoints/step-00000003");
    order += std::to_string(run.step) + (is_saved ? "saved " : " ");
    return false;
  });
  looked.run.on(Event::RunBegin, [&](Run&) { order += "begin "; });
  looked.run.on(Event::Validated, [&](Run&) { order += "validated "; });
  looked.run.train();
  CHECK(order == "begin 0 1 2 validated 3saved 4 5 validated ");
  CHECK(looked.run.digest() == unchanged());
}

TEST_CASE("between steps: it is called again while it returns true, until a signal or its own request ends the run") {
  for (const bool finishes : {true, false}) {
    const TemporaryFolder folder;
    int calls = 0;
    Looked looked(folder.path().string(), [&](Run& run, BetweenSteps&) {
      if (run.step < 2) return false;
      calls += 1;
      if (finishes && calls == 5) run.control->finish(*looked.run.wiring->optimizer, "enough");
      return calls < 1000;
    });
    if (!finishes) looked.run.stop_after(2);
    const auto outcome = looked.run.train();
    CHECK(calls == (finishes ? 5 : 0));
    CHECK(looked.run.run.step == 2);
    CHECK(outcome.finished == (finishes ? "optimizer/adamw: enough" : ""));
    SmallRun resumed(from_toml({base}), folder.path().string());
    REQUIRE(resumed.resume());
    CHECK(resumed.run.step == 2);
    CHECK(resumed.trainer->is_finished(resumed.run) == finishes);  // the checkpoint of that step says so
  }
}

TEST_CASE("between steps: a swap is done on return, and one that is refused leaves the run as it was") {
  const TemporaryFolder folder;
  std::string refusal;
  std::vector<std::string> swapped;
  Looked looked(folder.path().string(), [&](Run& run, BetweenSteps& between) {
    if (run.step == 2) {
      refusal = thrown_by([&] { between.swap(roles("[precision]\nuse = 'fp16'\n[scaler]\nuse = 'none'\n")); }).text;
    }
    if (run.step == 4) {
      between.swap(roles("[scaler]\nuse = 'none'\n"));
      CHECK(looked.run.wiring->scaler->id() == "scaler/none");
    }
    return false;
  });
  looked.run.on(Event::StepEnd, [&](Run& run) {
    for (const auto& role : run.swapped) swapped.push_back(role + std::to_string(run.step));
  });
  looked.run.train();
  CHECK(refusal.find("nothing was swapped after step 2") != std::string::npos);
  CHECK(swapped == std::vector<std::string>{"scaler5"});
  CHECK(looked.run.digest() == unchanged());  // no update was skipped, and the scale is a power of two
}

TEST_CASE("between steps: a validation and a checkpoint on request are those of the step before") {
  const TemporaryFolder folder;
  std::vector<std::int64_t> validated;
  std::optional<double> loss;
  std::string id;
  Looked looked(folder.path().string(), [&](Run& run, BetweenSteps& between) {
    if (run.step == 2) loss = between.validate();
    if (run.step == 2) id = between.save();
    return false;
  });
  looked.run.on(Event::Validated, [&](Run& run) { validated.push_back(run.step); });
  looked.run.train();
  CHECK(loss.has_value());
  CHECK(id == "checkpoint/rolling");
  CHECK(validated == std::vector<std::int64_t>{2, 3, 6});
  SmallRun resumed(from_toml({base}), folder.path().string());
  REQUIRE(resumed.resume(folder / "checkpoints/step-00000002"));
  resumed.train();
  CHECK(resumed.digest() == looked.run.digest());
}

TEST_CASE("between steps: what it throws ends the run in the requester's name") {
  const TemporaryFolder folder;
  Looked looked(folder.path().string(), [](Run& run, BetweenSteps&) {
    if (run.step == 2) throw vernier::Error("out of luck");
    return false;
  });
  CHECK(thrown_by([&] { looked.run.train(); }).text == "optimizer/adamw after step 2: out of luck");
}

}  // namespace between_steps_test
