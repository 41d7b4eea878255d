// Every list of actions comes to its end. Shows which skips count.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace recovery_bounds_test {

using toy::Toy;
using vernier::Event;
using vernier::Run;
using vernier::Table;

namespace {

using Texts = std::vector<std::string>;

vernier::Value value(std::int64_t data) {
  return {data, "test.toml:2"};
}
vernier::Value value(const Texts& texts) {
  vernier::Array array;
  for (const auto& text : texts) array.push_back({text, "test.toml:2"});
  return {array, "test.toml:2"};
}

enum class Fault { none, loss, gradient };

// A fault in the steps that are asked for, and what recovery did.
struct Faulty : Toy {
  Faulty(Table options, std::function<Fault(const Run&)> fault, std::int64_t steps, bool results_are_late = false) {
    wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/recovery", std::move(options)));
    on(Event::LossReady, [fault = std::move(fault)](Run& now) {
      const auto what = fault(now);
      if (what == Fault::loss) now.micro_batch_loss = now.micro_batch_loss * NAN;
      const auto& weight = now.parameters[0].model;  // sqrt(0): the loss is as it was, its gradient inf
      if (what == Fault::gradient)
        now.micro_batch_loss = now.micro_batch_loss + (weight - weight.detach()).sum().sqrt();
    });
    look(Event::StepEnd, [this](const Run& now) {
      for (const auto& notice : now.notices) count(notice);
    });
    run.steps = steps;
    run.results_are_late = results_are_late;
  }
  void count(const vernier::Notice& notice) {
    if (notice.name != "recovered") return;
    std::string trigger, action;
    for (const auto& [key, detail] : notice.details) {
      if (key == "trigger") trigger = std::get<std::string>(detail);
      if (key == "action") action = std::get<std::string>(detail);
    }
    if (!trigger.empty()) ++done[trigger + ": " + action];
  }
  Faulty& train() {
    prepare();
    thrown = thrown_by([&] { trainer->train(run); });
    return *this;
  }
  std::map<std::string, std::int64_t> done;
  Thrown thrown;
};

Fault always(const Run&) {
  return Fault::loss;
}

}  // namespace

TEST_CASE("recovery: a step that was skipped is not a calm one: an action that is allowed once is done once") {
  for (const bool results_are_late : {false, true}) {
    Faulty run({{"non_finite", value(Texts{"skip 1000000"})},
                {"skips", value(std::int64_t{10})},
                {"calm_steps", value(std::int64_t{5})},
                {"skips_in_a_row", value(Texts{"lower_learning_rate 1"})}},
               always, 150, results_are_late);
    run.train();
    CHECK(run.done["skips_in_a_row: lower_learning_rate"] == 1);
    CHECK(says(run.thrown.text, "no action of `skips_in_a_row` is left"));
    CHECK(run.run.step <= 22);
  }
}

TEST_CASE("recovery: with a fault in every step each action is done as often as its bound at most, then the run ends") {
  std::mt19937 random(17);
  const auto up_to = [&](unsigned most) { return static_cast<std::int64_t>(1 + random() % most); };
  int ended = 0, rewinds = 0;
  for (int i = 0; i < 60; ++i) {
    std::map<std::string, std::int64_t> most;
    const auto list = [&](const std::string& trigger, Texts names) {
      std::ranges::shuffle(names, random);
      names.resize(static_cast<std::size_t>(up_to(static_cast<unsigned>(names.size()))));
      for (auto& name : names) {
        const auto bound = most[trigger + ": " + name] = up_to(4);
        name += " " + std::to_string(bound);
      }
      return names;
    };
    const auto non_finite = list("non_finite", {"skip", "lower_learning_rate", "rewind"});
    const auto skips_in_a_row = list("skips_in_a_row", {"lower_learning_rate", "rewind"});
    Table options{{"non_finite", value(non_finite)},
                  {"skips_in_a_row", value(skips_in_a_row)},
                  {"calm_steps", value(up_to(12))},
                  {"skips", value(up_to(6))}};
    const bool rewinds_too = std::ranges::any_of(most, [](const auto& each) { return each.first.ends_with("rewind"); });
    if (rewinds_too) {
      options["rewind_back"] = value(up_to(3));
      options["snapshot_every"] = value(up_to(2));
      options["snapshots"] = value(std::int64_t{5});
    }
    const auto from = up_to(8) - 1;                                         // the first batch with a fault, from 0
    const auto fault = [from, has_begun = false](const Run& now) mutable {  // and stays where the run goes back
      has_begun = has_begun || now.batches_drawn >= from;
      return has_begun ? Fault::loss : Fault::none;
    };
    Faulty run(options, fault, 300, /*results_are_late=*/i % 2 == 1);
    run.train();
    CAPTURE(i);
    CAPTURE(c10::str(non_finite, " | ", skips_in_a_row));
    CHECK(says(run.thrown.text, "is left"));
    for (const auto& [action, times] : run.done) {
      CAPTURE(action);
      CHECK(times <= most[action]);
      rewinds += action.ends_with("rewind") ? 1 : 0;
    }
    ended += run.thrown.kind == 4 ? 1 : 0;
  }
  CHECK(ended == 60);
  CHECK(rewinds > 10);  // else the lists show little
}

TEST_CASE("recovery: skips with good batches between them are not in a row, where that is known late too") {
  for (const bool results_are_late : {false, true}) {
    Faulty run(
        {{"non_finite", value(Texts{"skip 2", "lower_learning_rate"})}},
        [](const Run& now) { return now.step % 2 == 1 ? Fault::loss : Fault::none; }, 12, results_are_late);
    run.train();
    CHECK(run.thrown == Thrown{});
    CHECK(run.done == std::map<std::string, std::int64_t>{{"non_finite: skip", 6}});
  }
}

TEST_CASE("recovery: calm is counted in updates that were applied") {
  // Trouble at 3 and at 9: five steps lie between, of which two are skipped for the scaler's overflow.
  for (const std::int64_t calm : {3, 4}) {
    Faulty run(
        {{"non_finite", value(Texts{"lower_learning_rate 1"})}, {"calm_steps", value(calm)}},
        [](const Run& now) {
          if (now.step == 3 || now.step == 9) return Fault::loss;
          return now.step == 5 || now.step == 6 ? Fault::gradient : Fault::none;
        },
        14);
    run.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
    run.train();
    CHECK(run.thrown.text.empty() == (calm == 3));
    CHECK(run.done["non_finite: lower_learning_rate"] == (calm == 3 ? 2 : 1));
  }
}

namespace {

constexpr const char* mlp = R"(
[run]
steps = 40
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[[callback]]
use = "recovery"
)";

struct Trajectory {
  Thrown thrown;
  std::int64_t steps = 0, overflows = 0;
};

// results_are_late: of the fate of each step; the losses are known at once.
Trajectory train(const std::string& text, bool results_are_late = false) {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({mlp + text}), output.path().string());
  run.run.results_are_late = results_are_late;
  const auto thrown = thrown_by([&] { run.train(); });
  return {thrown, run.run.step, run.run.amp.overflow_count()};
}

Table dynamic_scaler(std::int64_t overflows_in_a_row) {
  return {{"overflows_in_a_row", value(overflows_in_a_row)}};
}

}  // namespace

TEST_CASE("recovery: its defaults end no healthy run in float16, wherever the scale begins") {
  for (const std::string scaler :
       {"use = 'dynamic'", "use = 'dynamic'\npreset = 'pytorch'", "use = 'dynamic'\npreset = 'apex'",
        "use = 'dynamic'\npreset = 'megatron'", "use = 'dynamic'\npreset = 'deepspeed'",
        "use = 'dynamic'\ninit_scale = 1099511627776.0", "use = 'static'\nscale = 1024.0", "use = 'per_layer'",
        "use = 'per_layer'\ninit_scale = 4294967296.0", "use = 'statistical'"}) {
    CAPTURE(scaler);
    for (const bool results_are_late : {false, true}) {
      const auto start = train("[precision]\nuse = 'fp16'\n[scaler]\n" + scaler + "\n", results_are_late);
      CHECK(start.thrown == Thrown{});
      CHECK(start.steps == 40);
      if (says(scaler, "megatron")) CHECK(start.overflows > 10);  // or this would show nothing
      std::string in_line = scaler;
      if (const auto line = in_line.find('\n'); line != std::string::npos) in_line.replace(line, 1, ", ");
      const auto later = train(
          "[precision]\nuse = 'bf16'\n[[callback]]\nuse = 'switch'\nat_step = 3\nto = {precision = "
          "{use = 'fp16'}, scaler = {" +
              in_line + "}}\n",
          results_are_late);
      CHECK(later.thrown == Thrown{});
      CHECK(later.steps == 40);
    }
  }
}

TEST_CASE("recovery: overflows before the first update are the scaler's to end, those after it are skips in a row") {
  for (const bool results_are_late : {false, true}) {
    CAPTURE(results_are_late);
    const auto from = [&](std::int64_t first, std::int64_t end) {
      Faulty run(
          {}, [=](const Run& now) { return now.step >= first && now.step < end ? Fault::gradient : Fault::none; }, 60,
          results_are_late);
      run.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic", dynamic_scaler(30));
      run.train();
      return std::pair(run.thrown.text, run.run.step);
    };
    CHECK(from(0, 25) == std::pair(std::string(), std::int64_t{60}));
    const auto [storm, storm_end] = from(0, 60);
    CHECK_MESSAGE(says(storm, "scaler/dynamic"), storm);
    CHECK(says(storm, "the gradients of 30 updates in a row overflowed"));
    CHECK(storm_end == (results_are_late ? 31 : 30));
    const auto [later, later_end] = from(1, 60);
    CHECK_MESSAGE(says(later, "10 updates in a row were skipped"), later);
    CHECK(later_end == (results_are_late ? 12 : 11));
  }
}

TEST_CASE("recovery: a veto before the first update is a skip, with a scaler too") {
  Faulty run(
      {{"non_finite", value(Texts{"skip 100"})}}, [](const Run&) { return Fault::none; }, 40);
  run.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  run.on(Event::GradientsReady, [](Run& now) { now.skip_update = torch::ones({}, torch::kFloat32); });
  run.train();
  CHECK(says(run.thrown.text, "10 updates in a row were skipped"));
}

}  // namespace recovery_bounds_test
