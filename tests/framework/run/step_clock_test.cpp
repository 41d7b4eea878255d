// The time of a step by part: metrics of the step, and sums of the run.
#include <doctest/doctest.h>
#include <unistd.h>

#include <map>
#include <string>

#include "patience.h"
#include "toy_run.h"

namespace step_clock_test {

using toy::Toy;
using vernier::Event;
using vernier::Run;

namespace {

constexpr double nap = 0.03;  // seconds

void sleep_a_little() {
  ::usleep(static_cast<useconds_t>(nap * 1e6));
}

// Sleeps in one of its functions.
class SlowTask final : public toy::Task {
 public:
  explicit SlowTask(std::string in) : in_(std::move(in)) {}
  vernier::Batch next() override {
    if (in_ == "next") sleep_a_little();
    return Task::next();
  }
  torch::Tensor loss(const vernier::Batch& micro_batch) override {
    auto loss = Task::loss(micro_batch);
    if (in_ == "loss" && loss.requires_grad()) sleep_a_little();
    if (in_ == "backward" && loss.requires_grad()) loss.register_hook([](const torch::Tensor&) { sleep_a_little(); });
    return loss;
  }
  torch::Tensor validate(Run& run) override {
    if (in_ == "validate") sleep_a_little();
    return Task::validate(run);
  }

 private:
  std::string in_;
};

class SlowOptimizer final : public toy::Descent {
  void step(Run& run) override {
    sleep_a_little();
    Descent::step(run);
  }
};

class SlowCheckpoint final : public toy::Memory {
  void write(const vernier::State& snapshot, Run& run) override {
    sleep_a_little();
    Memory::write(snapshot, run);
  }
};

// A run of six steps where one thing sleeps in each step.
std::map<std::string, double> times_with(const std::string& sleeper) {
  Toy toy;
  toy.wiring.task = std::make_unique<SlowTask>(sleeper);
  if (sleeper == "optimizer") toy.wiring.optimizer = std::make_unique<SlowOptimizer>();
  if (sleeper == "checkpoint") {
    toy.wiring.checkpoint = std::make_unique<SlowCheckpoint>();
    toy.memory().every = 1;
  }
  for (const auto event : {Event::StepBegin, Event::LossReady, Event::UpdateDone, Event::StepEnd}) {
    toy.on(event, [event, sleeper](Run&) {
      if (sleeper == vernier::name_of(event)) sleep_a_little();
    });
  }
  return toy.prepare(/*validate_every=*/1).train(toy.run).times;
}

}  // namespace

TEST_CASE("step clock: what sleeps is found in its part, and nowhere else") {
  const std::pair<const char*, const char*> cases[] = {
      {"next", "data_wait"},      {"loss", "forward"},          {"backward", "backward"},  {"optimizer", "update"},
      {"StepBegin", "plugins"},   {"LossReady", "plugins"},     {"UpdateDone", "plugins"}, {"StepEnd", "plugins"},
      {"validate", "validation"}, {"checkpoint", "checkpoint"},
  };
  for (const auto& [sleeper, part] : cases) {
    CAPTURE(sleeper);
    const auto times = times_with(sleeper);
    const double little = patience::limit(3 * nap);
    REQUIRE(times.size() == 8);
    for (const auto& [name, seconds] : times) {
      CAPTURE(name);
      if (name == part) {
        CHECK(seconds >= 6 * nap);
      } else {
        CHECK(seconds < little);
      }
    }
  }
}

TEST_CASE("step clock: the parts of a step add up to its time, which a clock outside confirms") {
  Toy toy;
  toy.wiring.task = std::make_unique<SlowTask>("loss");
  std::chrono::steady_clock::time_point begun;
  int steps = 0;
  toy.on(Event::StepBegin, [&](Run&) { begun = std::chrono::steady_clock::now(); });
  toy.look(Event::StepEnd, [&](const Run& run) {
    const double outside = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    double sum = 0;
    for (const char* part :
         {"data_wait", "forward_time", "backward_time", "update_time", "plugins_time", "trainer_time"}) {
      sum += run.metrics.value(part).value();
    }
    const double step = run.metrics.value("step_time").value();
    CHECK(sum == doctest::Approx(step).epsilon(1e-6));
    CHECK(step == doctest::Approx(outside).epsilon(0.05));
    for (const auto* metric : run.metrics.set_now()) CHECK(metric->is_time);
    steps += 1;
  });
  const auto outcome = toy.prepare().train(toy.run);
  CHECK(steps == 6);
  double sum = 0;
  for (const auto& [part, seconds] : outcome.times) {
    if (part != "validation" && part != "checkpoint") sum += seconds;
  }
  CHECK(sum == doctest::Approx(outcome.seconds).epsilon(0.05));
}

TEST_CASE("step clock: what the optimizer computes again is forward and backward, and the rest of its step update") {
  class Twice final : public toy::Descent {
    void step(Run& run) override {
      run.control->recompute();
      sleep_a_little();
      Descent::step(run);
    }
  };
  Toy toy;
  toy.wiring.task = std::make_unique<SlowTask>("loss");
  toy.wiring.optimizer = std::make_unique<Twice>();
  const auto times = toy.prepare().train(toy.run).times;
  CHECK(times.at("forward") >= 12 * nap);
  CHECK(times.at("update") >= 6 * nap);
  CHECK(times.at("update") < 6 * nap + patience::limit(3 * nap));
}

TEST_CASE("step clock: a validation has its time, and the step after a checkpoint the checkpoint's") {
  Toy toy;
  toy.wiring.checkpoint = std::make_unique<SlowCheckpoint>();
  toy.memory().every = 2;
  std::map<std::int64_t, double> checkpoints;
  int validations = 0;
  toy.look(Event::StepEnd, [&](const Run& run) {
    if (const auto seconds = run.metrics.value("checkpoint_time")) checkpoints[run.step] = *seconds;
  });
  toy.look(Event::Validated, [&](const Run& run) {
    CHECK(run.metrics.value("validation_time").value() > 0);
    validations += 1;
  });
  toy.prepare(/*validate_every=*/3).train(toy.run);
  CHECK(validations == 2);
  REQUIRE(checkpoints.size() == 2);
  CHECK(checkpoints.at(3) >= nap);
  CHECK(checkpoints.at(5) >= nap);
}

}  // namespace step_clock_test
