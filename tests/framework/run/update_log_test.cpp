// The results of an update that the host learns a step late, as on a GPU, equal those that it learns at once on a CPU.
#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <random>
#include <utility>

#include "host_syncs.h"
#include "log_lines.h"
#include "same_tensors.h"
#include "thrown.h"
#include "toy_run.h"

namespace update_log_test {

using vernier::Event;
using vernier::Run;
using vernier::UpdateResult;
using Texts = std::vector<std::string>;

namespace {

constexpr std::int64_t steps = 24;

// A run in which some updates overflow, in one gradient or in all, and some are vetoed.
struct Trajectory : toy::Toy {
  Trajectory(bool results_are_late, unsigned seed, const std::function<void(Trajectory&)>& more = nullptr) {
    run.results_are_late = results_are_late;
    run.steps = steps;
    wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic", {{"growth_interval", {std::int64_t{3}, ""}}});
    wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
    memory().every = 1;
    std::mt19937 random(seed);
    for (auto& each : kinds) each = static_cast<int>(random() % 6);
    on(Event::BatchReady, [this](Run& now) {
      const auto kind = kinds[static_cast<std::size_t>(now.step)];
      if (!std::exchange(has_hook, true)) {
        now.parameters[1].model.register_hook([this](const torch::Tensor& g) { return spoil ? g * HUGE_VAL : g; });
      }
      spoil = kind == 1;
    });
    on(Event::LossReady, [this](Run& now) {
      if (kinds[static_cast<std::size_t>(now.step)] == 2) now.micro_batch_loss = now.micro_batch_loss * HUGE_VAL;
    });
    on(Event::GradientsReady, [this](Run& now) {
      if (kinds[static_cast<std::size_t>(now.step)] == 3) now.skip_update = torch::ones({});
    });
    if (more) more(*this);
    for (const auto event : {Event::StepEnd, Event::RunEnd}) {
      look(event, [this](const Run& now) {
        for (const auto& notice : now.notices) told.push_back(notice.text());
      });
    }
    look(Event::StepEnd, [this](const Run& now) {
      updates.push_back(now.updates);
      overflows.push_back(now.amp.overflow_count());
      results.push_back(now.last_update);
      CHECK(now.amp.total_steps() == now.step);
      CHECK(now.amp.amp_steps() == 0);  // a scaler alone is not mixed precision
    });
    look(Event::RunEnd, [this](const Run& now) { overflows.push_back(now.amp.overflow_count()); });
    prepare();
  }
  Texts skips() const {
    Texts all;
    for (const auto& text : told) {
      if (text.starts_with("step_skipped")) all.push_back(text);
    }
    return all;
  }
  std::array<int, steps> kinds{};
  bool spoil = false, has_hook = false;
  Texts told;
  std::vector<std::int64_t> updates, overflows;  // a monitor sees these; overflows: at RunEnd too
  std::vector<UpdateResult> results;
};

}  // namespace

TEST_CASE("update_log: known a step late it is the same, with reason and gradients, and counts a step later") {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Trajectory at_once(false, seed), late(true, seed);
    const auto now = at_once.trainer->train(at_once.run), then = late.trainer->train(late.run);
    CHECK(equal(late.weights(), at_once.weights()));
    CHECK(late.skips() == at_once.skips());
    CHECK(then.updates == now.updates);
    CHECK(late.run.amp.overflow_count() == at_once.run.amp.overflow_count());
    for (std::size_t i = 1; i < steps; ++i) CHECK(late.updates[i] == at_once.updates[i - 1]);
    std::vector<std::int64_t> counted;
    for (const auto kind : at_once.kinds) {
      const bool is_overflow = kind == 1 || kind == 2;
      counted.push_back((counted.empty() ? 0 : counted.back()) + (is_overflow ? 1 : 0));
    }
    std::vector<UpdateResult> results;
    for (const auto kind : at_once.kinds) {
      results.push_back(kind == 1 || kind == 2 ? UpdateResult::found_inf
                        : kind == 3            ? UpdateResult::vetoed
                                               : UpdateResult::applied);
    }
    CHECK((at_once.results == results));
    results.pop_back();
    results.insert(results.begin(), UpdateResult::none);
    CHECK((late.results == results));
    counted.push_back(counted.back());  // at RunEnd
    CHECK(at_once.overflows == counted);
    counted.pop_back();
    counted.insert(counted.begin(), 0);  // the last step's is known at RunEnd
    CHECK(late.overflows == counted);
    Texts expected;
    for (std::size_t i = 0; i < steps; ++i) {
      const auto step = "step_skipped step=" + std::to_string(i + 1);
      const auto bad = step + " reason=gradients not finite gradients=";
      if (late.kinds[i] == 1) expected.push_back(bad + "second");
      if (late.kinds[i] == 2) expected.push_back(bad + "first,second");
      if (late.kinds[i] == 3) expected.push_back(step + " reason=vetoed");
    }
    CHECK(late.skips() == expected);
  }
}

TEST_CASE("update_log: known late, a run that is stopped after any step and resumed is the run that was not") {
  Trajectory whole(true, 3);
  const auto outcome = whole.trainer->train(whole.run);
  for (std::int64_t stop = 1; stop < steps; ++stop) {
    CAPTURE(stop);
    Trajectory first(true, 3, [stop](Trajectory& trajectory) {
      trajectory.on(Event::StepEnd, [&trajectory, stop](Run& now) {
        if (now.step == stop) trajectory.stop = SIGINT;
      });
    });
    first.trainer->train(first.run);
    for (const char* name : {"trainer/last_update", "trainer/not_finite"}) CHECK(first.memory().last->has(name));
    Trajectory second(true, 3);
    second.trainer->resume(second.run, *first.memory().last);
    const auto end = second.trainer->train(second.run);
    CHECK(equal(second.weights(), whole.weights()));
    CHECK(end.updates == outcome.updates);
    const std::vector<std::int64_t> rest_overflows(whole.overflows.begin() + stop, whole.overflows.end());
    CHECK(second.overflows == rest_overflows);
    const std::vector<std::int64_t> rest(whole.updates.begin() + stop, whole.updates.end());
    CHECK(second.updates == rest);
    const std::vector<UpdateResult> rest_results(whole.results.begin() + stop, whole.results.end());
    CHECK((second.results == rest_results));
    // The skip of the step before the stop is reported twice: at the end of the first part, and where the run goes on.
    auto told = first.skips();
    const auto again = second.skips();
    if (!told.empty() && !again.empty() && told.back() == again.front()) told.pop_back();
    told.insert(told.end(), again.begin(), again.end());
    CHECK(told == whole.skips());
  }
}

TEST_CASE("update_log: known late, recovery skips the same steps, and reports it a step later") {
  const auto with_recovery = [](Trajectory& trajectory) {
    vernier::Array skip = {{std::string("skip 1000"), ""}};
    trajectory.wiring.callbacks.push_back(
        make_plugin<vernier::Callback>("callback/recovery", {{"non_finite", {skip, ""}},
                                                             {"spike", {skip, ""}},
                                                             {"z_score", {2.0, ""}},
                                                             {"window", {std::int64_t{8}, ""}},
                                                             {"skips", {std::int64_t{1000}, ""}}}));
  };
  Trajectory at_once(false, 5, with_recovery), late(true, 5, with_recovery);
  for (auto* trajectory : {&at_once, &late}) trajectory->trainer->train(trajectory->run);
  CHECK(equal(late.weights(), at_once.weights()));
  const auto recovered = [](const Trajectory& trajectory) {
    return std::ranges::count_if(trajectory.told, [](const auto& text) { return text.starts_with("recovered"); });
  };
  CHECK(recovered(at_once) > 2);
  CHECK(recovered(late) >= recovered(at_once) - 1);  // the last step's is not reported any more
  CHECK(recovered(late) <= recovered(at_once));
}

TEST_CASE("update_log: known late, the average of the weights moves in the same steps") {
  const auto with_average = [](Trajectory& trajectory) {
    trajectory.wiring.callbacks.insert(trajectory.wiring.callbacks.begin(),
                                       make_plugin<vernier::Callback>("callback/ema", {{"decay", {0.7, ""}}}));
  };
  Trajectory at_once(false, 4, with_average), late(true, 4, with_average);
  for (auto* trajectory : {&at_once, &late}) trajectory->trainer->train(trajectory->run);
  const auto expected = at_once.wiring.callbacks.front()->save(), found = late.wiring.callbacks.front()->save();
  CHECK(found.integer("updates") == expected.integer("updates"));
  CHECK(found.integer("updates") < steps);
  for (const char* name : {"average/first", "average/second"}) {
    CHECK(torch::allclose(found.tensor(name), expected.tensor(name), 1e-5, 1e-6));
  }
}

TEST_CASE("update_log: without a scaler a step is one of mixed precision where its precision says so") {
  struct Mixed final : vernier::Precision {
    bool is_mixed() const override { return true; }
  };
  for (const bool is_mixed : {false, true}) {
    toy::Toy run;
    if (is_mixed) run.wiring.precision = std::make_unique<Mixed>();
    run.prepare().train(run.run);
    CHECK(run.run.amp.total_steps() == 6);
    CHECK(run.run.amp.amp_steps() == (is_mixed ? 6 : 0));
  }
}

TEST_CASE("update_log: a loss that is not finite is reported where nobody else looks") {
  for (const bool is_checked : {false, true}) {
    toy::Toy run;
    if (is_checked) run.wiring.scaler = make_plugin<vernier::Scaler>("scaler/static");
    run.run.steps = 3;
    run.on(Event::LossReady, [](Run& now) {
      if (now.step == 1) now.micro_batch_loss = now.micro_batch_loss * HUGE_VAL;
    });
    Texts told;
    run.look(Event::StepEnd, [&](const Run& now) {
      if (now.step > 2) return;  // the weights are spoiled then
      for (const auto& notice : now.notices) {
        told.push_back(notice.text());
        told.push_back(notice.sentence);
      }
    });
    run.prepare().train(run.run);
    REQUIRE(told.size() == 2);
    CHECK(told[0].starts_with(is_checked ? "step_skipped step=2" : "non_finite step=2 what=loss"));
    CHECK(told[1] ==
          (is_checked ? "the update is skipped: gradients are not finite (first,second)" : "the loss is not finite"));
  }
}

TEST_CASE("update_log: weights that are not finite are in no checkpoint, those of a skipped update are") {
  const NoLog no_log;
  for (const bool is_skipped : {false, true}) {
    toy::Toy run;
    run.run.steps = 5;
    run.memory().every = 1;
    run.on(Event::LossReady, [](Run& now) {
      if (now.step == 2) now.micro_batch_loss = now.micro_batch_loss * HUGE_VAL;
    });
    run.on(Event::GradientsReady, [is_skipped](Run& now) {
      if (now.step == 2 && is_skipped) now.skip_update = torch::ones({});
    });
    run.prepare().train(run.run);
    const std::vector<std::int64_t> all{1, 2, 3, 4, 5}, sound{1, 2};
    CHECK(run.memory().steps == (is_skipped ? all : sound));
  }
}

TEST_CASE("update_log: where results are late, a step reads no number of it, with any scaler and the usual callbacks") {
  // On a CPU the host reads the flag for the average, and LossScale computes there. On a GPU neither reads anything.
  const std::map<std::string, int> on_a_cpu = {
      {"none", 1}, {"static", 1}, {"dynamic", 2}, {"statistical", 1}, {"per_layer", 3}};
  for (const auto& [scaler, reads_on_a_cpu] : on_a_cpu) {
    CAPTURE(scaler);
    toy::Toy run;
    run.run.results_are_late = true;
    run.run.steps = 6;
    run.wiring.scaler = make_plugin<vernier::Scaler>("scaler/" + scaler);
    run.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
    for (const char* name : {"recovery", "schedule", "ema"}) {
      run.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/" + std::string(name)));
    }
    run.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/clip_norm", {{"max_norm", {1.0, ""}}}));
    auto& trainer = run.prepare();
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      const int reads = host_syncs_of([&] { trainer.step().step(run.run); });
      // Scale and, a step late, weights are looked at once in a hundred steps.
      if (run.run.step % 100 > 2) CHECK(reads == reads_on_a_cpu);
      run.run.notices.clear();
    }
  }
}

TEST_CASE(
    "update_log: run.amp has scale and tracker as the scaler has them after its update, known late or not, and each "
    "underflow") {
  struct Own final : vernier::Scaler {
    explicit Own(bool tracks) : tracks(tracks) { set_id("scaler/own"); }
    void unscale(Run& run) override {
      run.found_inf = torch::zeros({});
      if (run.step % 2 == 1) run.metrics.set("underflow", torch::full({}, run.step == 1 ? 1.0 : 0.0));
    }
    void update(Run&) override { ++updates; }
    Current current() const override {
      const auto tracker = tracks ? torch::tensor(10 * updates, torch::kInt32) : torch::Tensor();
      return {torch::full({}, updates < 2 ? 64.0 : updates < 4 ? 32.0 : 128.0), tracker};
    }
    std::int64_t updates = 0;
    bool tracks;
  };
  for (const bool is_late : {false, true}) {
    for (const bool tracks : {false, true}) {
      CAPTURE(is_late);
      CAPTURE(tracks);
      toy::Toy run;
      run.wiring.scaler = std::make_unique<Own>(tracks);
      run.run.results_are_late = is_late;
      run.prepare().train(run.run);
      const auto& amp = run.run.amp;
      std::vector<std::pair<std::int64_t, double>> history;
      for (const auto& [step, scale] : amp.history()) history.emplace_back(step, scale);
      CHECK(history == std::vector<std::pair<std::int64_t, double>>{{1, 64}, {3, 32}, {5, 128}});
      CHECK(amp.scaler_updates() == 2);
      CHECK(amp.current_scale() == 128);
      CHECK(amp.growth_tracker() == (tracks ? std::optional<std::int64_t>(60) : std::nullopt));
      CHECK(amp.underflow().value().mean == doctest::Approx(1.0 / 3));
      CHECK(amp.underflow().value().last == 0.0);
    }
  }
}

}  // namespace update_log_test
