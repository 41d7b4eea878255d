// Runs that end before their last planned step: Control::finish, and the time limit.
#include <doctest/doctest.h>

#include <thread>

#include "thrown.h"
#include "toy_run.h"

namespace finish_test {

using toy::Toy;
using vernier::Event;
using vernier::Run;

namespace {

// A plugin that asks for the end, in one event of one step.
class Finisher final : public vernier::Callback {
 public:
  Finisher(Event event, std::int64_t step) : event_(event), step_(step) { set_id("callback/finisher"); }
  void attach(vernier::Bus& bus) override {
    bus.on(event_, [this](Run& run) {
      if (run.step == step_ + (event_ == Event::StepEnd ? 1 : 0)) run.control->finish(*this, "enough");
    });
  }

 private:
  Event event_;
  std::int64_t step_;
};

struct Finished : Toy {
  explicit Finished(Event event = Event::StepEnd, std::int64_t step = 2) {
    wiring.callbacks.push_back(std::make_unique<Finisher>(event, step));
    look(Event::StepEnd, [this](const Run& now) { is_announced = now.validates; });
    on(Event::Validated, [this](Run&) { ++validations; });
    on(Event::RunEnd, [this](Run&) { has_ended = true; });
  }
  bool is_announced = false, has_ended = false;
  int validations = 0;
};

}  // namespace

TEST_CASE("finish: the step in which a plugin asks is the last one, with a validation, a checkpoint and RunEnd") {
  for (const auto event :
       {Event::StepBegin, Event::BatchReady, Event::GradientsReady, Event::UpdateDone, Event::StepEnd}) {
    CAPTURE(vernier::name_of(event));
    Finished toy(event);
    const auto outcome = toy.prepare().train(toy.run);
    CHECK(toy.run.step == 3);
    CHECK(toy.is_announced);
    CHECK(toy.validations == 1);
    CHECK(toy.memory().steps == std::vector<std::int64_t>{3});
    CHECK(toy.has_ended);
    CHECK(outcome.finished == "callback/finisher: enough");
    CHECK(outcome.validation_loss);
    CHECK(outcome.signal == 0);
    CHECK_FALSE(outcome.is_out_of_time);
    CHECK(toy.trainer->is_finished(toy.run));
  }
}

TEST_CASE("finish: at Validated there is no other validation; in the last planned step the run is just done") {
  Finished toy(Event::Validated, 4);
  CHECK(toy.prepare(2).train(toy.run).finished == "callback/finisher: enough");
  CHECK(toy.run.step == 4);
  CHECK(toy.validations == 2);
  CHECK(toy.memory().steps == std::vector<std::int64_t>{4});
  Finished last(Event::Validated, 6);
  CHECK(last.prepare(2).train(last.run).finished == "");
  CHECK(last.validations == 3);
}

TEST_CASE("finish: a resumed run does nothing more, and trains on where more steps are planned") {
  Finished toy;
  toy.prepare().train(toy.run);
  const auto snapshot = *toy.memory().last;
  for (const std::int64_t steps : {6, 9}) {
    CAPTURE(steps);
    Toy second;
    second.run.steps = steps;
    second.wiring.callbacks.push_back(std::make_unique<Finisher>(Event::StepEnd, -1));
    auto& trainer = second.prepare();
    trainer.resume(second.run, snapshot, /*allow_inexact=*/true);
    CHECK(trainer.is_finished(second.run) == (steps == 6));
    const auto outcome = trainer.train(second.run);
    CHECK(second.run.step == (steps == 6 ? 3 : 9));
    CHECK(outcome.finished == (steps == 6 ? "callback/finisher: enough" : ""));
  }
}

TEST_CASE("finish: a step that fails is not the end of the run, and neither is one that asks to fail") {
  Finished fails(Event::StepBegin);
  fails.on(Event::GradientsReady, [](Run& run) {
    if (run.step == 2) throw std::runtime_error("boom");
  });
  CHECK(says(thrown_by([&] { fails.prepare().train(fails.run); }).text, "boom"));
  CHECK(fails.memory().steps == std::vector<std::int64_t>{2});
  CHECK_FALSE(fails.memory().last->has("trainer/finished"));
  Finished asks;
  asks.on(Event::StepEnd, [&](Run& run) {
    if (run.step == 3) run.control->fail(*asks.wiring.callbacks.front(), "bad");
  });
  CHECK(says(thrown_by([&] { asks.prepare().train(asks.run); }).text, "bad"));
  REQUIRE(asks.memory().last);
  CHECK_FALSE(asks.memory().last->has("trainer/finished"));
}

TEST_CASE("time limit: the run ends after the step in work, with a checkpoint, and can be resumed") {
  Finished toy(Event::StepEnd, -1);
  toy.run.steps = 1000;
  toy.on(Event::StepBegin, [](Run&) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  auto& trainer = toy.prepare();
  trainer.ending().limit_time(std::chrono::seconds(1));
  const auto outcome = trainer.train(toy.run);
  CHECK(outcome.is_out_of_time);
  CHECK(outcome.finished == "");
  CHECK(toy.run.step >= 1);
  CHECK(toy.run.step <= 4);
  CHECK(toy.memory().steps == std::vector<std::int64_t>{toy.run.step});
  CHECK(toy.validations == 0);
  CHECK(toy.has_ended);
  CHECK_FALSE(trainer.is_finished(toy.run));
  Finished second(Event::StepEnd, -1);
  second.run.steps = toy.run.step + 2;
  second.prepare().resume(second.run, *toy.memory().last, /*allow_inexact=*/true);
  CHECK_FALSE(second.trainer->train(second.run).is_out_of_time);
  CHECK(second.run.step == second.run.steps);
}

TEST_CASE("time limit: the last planned step is the end of the run, however late it is") {
  Finished toy(Event::StepEnd, -1);
  toy.run.steps = 1;
  toy.on(Event::StepBegin, [](Run&) { std::this_thread::sleep_for(std::chrono::milliseconds(1100)); });
  auto& trainer = toy.prepare();
  trainer.ending().limit_time(std::chrono::seconds(1));
  CHECK_FALSE(trainer.train(toy.run).is_out_of_time);
  CHECK(toy.validations == 1);
}

}  // namespace finish_test
