#include <doctest/doctest.h>

#include "log_lines.h"
#include "run/preparation.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace switch_test {

using vernier::Run;

namespace {

constexpr const char* base = R"(
[run]
steps = 12
validate_every = 4
[task]
use = "mlp"
samples = 64
[optimizer]
use = "sgd"
[checkpoint]
use = "none"
)";

// After how many steps the run went over to bfloat16; -1 where it did not.
std::int64_t switched_after(const std::string& when, const std::function<void(SmallRun&)>& before = nullptr) {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({base + std::string("[[callback]]\nuse = 'switch'\n") + when +
                          "[callback.to]\nprecision = {use = 'bf16'}\n"}),
               output.path().string());
  if (before) before(run);
  run.train();
  const auto& swaps = run.wiring->swaps;
  CHECK(swaps.size() <= 1);
  CHECK((run.wiring->precision->id() == "precision/bf16") == !swaps.empty());
  return swaps.empty() ? -1 : swaps.front().step;
}

Thrown refusal(const std::string& options) {
  return thrown_by([&] { switched_after(options); });
}

}  // namespace

TEST_CASE("switch: after the step that is named") {
  CHECK(switched_after("at_step = 1\n") == 1);
  CHECK(switched_after("at_step = 5\n") == 5);
  CHECK(switched_after("at_step = 12\n") == 12);
  CHECK(switched_after("at_step = 13\n") == -1);
}

TEST_CASE("switch: where a metric crosses a line, once") {
  const auto measure = [](const char* name) {
    return [name](SmallRun& run) {
      // Before the switch looks, and the second crossing is a crossing too.
      run.on(vernier::Event::GradientsReady, [name](Run& now) {
        const double values[] = {1, 2, NAN, 3, 5, 1, 0, 5, 1, 5, 1, 5};
        now.metrics.set(name, values[now.step]);
      });
    };
  };
  CHECK(switched_after("metric = 'noise'\nabove = 3\n", measure("noise")) == 5);
  CHECK(switched_after("metric = 'noise'\nbelow = 1\n", measure("noise")) == 7);
  CHECK(switched_after("metric = 'noise'\nabove = 4\nbelow = 2\n", measure("noise")) == 1);
  CHECK(switched_after("metric = 'noise'\nabove = 3\nat_step = 2\n", measure("noise")) == 2);
  CHECK(switched_after("metric = 'noise'\nabove = 5\n", measure("noise")) == -1);
  CHECK(switched_after("metric = 'noise'\nabove = 3\n", measure("another")) == -1);
  CHECK(switched_after("metric = 'loss'\nbelow = 1e9\n") == 1);
  CHECK(switched_after("metric = 'validation_loss'\nabove = 0\n") == 4);
}

TEST_CASE("switch: it needs to know when, and to what") {
  CHECK(says(refusal("").text, "callback/switch: `at_step` or `metric` must say when to switch"));
  CHECK(says(refusal("metric = 'loss'\n").text, "callback/switch: `metric` needs a line: add `above` or `below`"));
  CHECK(says(refusal("at_step = 3\nabove = 2\n").text, "callback/switch: `above` needs a `metric`"));
  CHECK(says(thrown_by([] {
               const TemporaryFolder output;
               SmallRun run(from_toml({base + std::string("[[callback]]\nuse = 'switch'\nat_step = 3\n")}),
                            output.path().string());
             }).text,
             "callback/switch: `to` is needed: by role the table of its plugin from then on"));
}

namespace {

// The sentences of the notices `alarm`, with their steps.
std::string alarms(const std::string& options, const std::string& others = "", bool results_are_late = false) {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({base + std::string("[[callback]]\nuse = 'alarm'\n") + options, others}),
               output.path().string());
  run.run.results_are_late = results_are_late;
  std::string text;
  run.on(vernier::Event::GradientsReady, [](Run& now) {
    const double values[] = {1, 2, NAN, 3, 5, 6, 0, 5, 1, 5, 1, 5};
    now.metrics.set("noise", values[now.step]);
  });
  const auto collect = [&text](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name == "alarm") text += c10::str(now.step, ": ", notice.sentence, '\n');
    }
  };
  run.on(vernier::Event::StepEnd, collect);
  run.on(vernier::Event::Validated, collect);
  run.train();
  return text;
}

}  // namespace

TEST_CASE("alarm: it warns when a metric crosses its line, and again when it was back in between") {
  CHECK(alarms("metric = 'noise'\nabove = 4\n") ==
        "5: noise is 5, above 4\n8: noise is 5, above 4\n10: noise is 5, above 4\n12: noise is 5, above 4\n");
  CHECK(alarms("metric = 'noise'\nabove = 4\nbelow = 1\nfrom = 6\n") ==
        "6: noise is 6, above 4\n10: noise is 5, above 4\n12: noise is 5, above 4\n");
  CHECK(alarms("metric = 'noise'\nabove = 6\n").empty());
  CHECK(alarms("metric = 'another'\nabove = 0\n").empty());
  CHECK(alarms("metric = 'validation_loss'\nabove = 0\n").starts_with("4: validation_loss is "));
}

// Gradients overflow at a scale of 1e9 in float16. Monitors compute these metrics from counts of the run.
TEST_CASE("alarm: it knows the overflow rate") {
  const std::string precision = "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 1e9\n";
  CHECK(alarms("metric = 'overflow_rate'\nabove = 0.1\n", precision) == "1: overflow_rate is 1, above 0.1\n");
  CHECK(alarms("metric = 'skipped_updates'\nabove = 1.5\n", precision) == "2: skipped_updates is 2, above 1.5\n");
  CHECK(alarms("metric = 'skipped_updates'\nabove = 1.5\n", precision, /*results_are_late=*/true) ==
        "3: skipped_updates is 2, above 1.5\n");
  CHECK(alarms("metric = 'overflow_rate'\nabove = 0.1\n").empty());  // no scaler
}

TEST_CASE("alarm: it sees each metric of the trainer") {
  for (const auto& info : vernier::trainer_metrics()) {
    if (info.name == "communication_time") continue;  // one rank waits for no other
    CAPTURE(info.name);
    toy::Toy toy;
    toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
    toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{2, 4});
    toy.memory().every = 1;
    toy.wiring.callbacks.push_back(
        make_plugin<vernier::Callback>("callback/alarm", from_toml({"metric = '" + info.name + "'\nabove = -1\n"})));
    bool is_seen = false;
    const auto look = [&](const Run& run) {
      for (const auto& notice : run.notices) is_seen |= notice.name == "alarm";
    };
    toy.look(vernier::Event::StepEnd, look);
    toy.look(vernier::Event::Validated, look);
    toy.prepare(/*validate_every=*/3).train(toy.run);
    CHECK(is_seen);
  }
}

TEST_CASE("alarm: it sees the metrics of a callback that stands behind it") {
  const std::pair<const char*, const char*> behind[] = {{"memory_resident", "use = 'hardware'\n"},
                                                        {"memory_peak", "use = 'memory'\n"}};
  for (const auto& [metric, callback] : behind) {
    const auto options = std::string("metric = '") + metric + "'\nabove = 0\n[[callback]]\n" + callback;
    CHECK(alarms(options).starts_with(std::string("1: ") + metric + " is "));
  }
}

TEST_CASE("alarm: it needs a metric and a line") {
  const auto refused = [](const std::string& options) { return thrown_by([&] { alarms(options); }).text; };
  CHECK(says(refused(""), "callback/alarm: `metric` is needed, and a line: `above` or `below`"));
  CHECK(says(refused("metric = 'loss'\n"), "`metric` needs a line: add `above` or `below`"));
  CHECK(says(refused("above = 1\n"), "`above` needs a `metric`"));
  CHECK(says(refused("metric = 'accuracy'\nabove = 1\n"), "\"accuracy\" is never above 1"));
}

}  // namespace switch_test
