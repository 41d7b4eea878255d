// Calls: who is called, in which step, also if something throws.
#include "run/calls.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "thrown.h"
#include "toy_run.h"

namespace calls_test {

using vernier::Calls;

TEST_CASE("calls: a call ends with its caller, and an error keeps the plugin that it came from") {
  toy::Toy toy;
  Calls calls(toy.wiring);
  const vernier::Plugin *task = toy.wiring.task.get(), *optimizer = toy.wiring.optimizer.get();
  calls.note(task);
  {
    const auto as = calls.as(optimizer);
    CHECK(calls.called() == optimizer);
  }
  CHECK(calls.called() == task);
  const auto thrown = thrown_by([&] {
    calls.attributed(toy.run, [&] {
      const auto as = calls.as(optimizer);
      throw std::runtime_error("boom");
    });
  });
  CHECK(thrown.text == "optimizer/descent: boom");
}

TEST_CASE("calls: an error names the step that it left, and no step is under way afterwards") {
  toy::Toy toy;
  toy.run.step = 2;
  Calls calls(toy.wiring);
  vernier::Role<vernier::Task> task(toy.wiring.task, calls);
  const auto in_step = thrown_by([&] {
    calls.attributed_in_step(toy.run, [&] {
      (void)task->batches_per_epoch();
      throw std::runtime_error("boom");
    });
  });
  CHECK(in_step.text == "task/toy in step 3: boom");
  CHECK_FALSE(calls.is_in_step());
  calls.attributed_in_step(toy.run, [&] { CHECK(calls.is_in_step()); });
  CHECK_FALSE(calls.is_in_step());
  calls.note(nullptr);
  const auto between = thrown_by([&] { calls.attributed(toy.run, [] { throw std::runtime_error("boom"); }); });
  CHECK(between.text == "trainer after step 2: boom");
}

}  // namespace calls_test
