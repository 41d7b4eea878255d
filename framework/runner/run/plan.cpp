#include "plan.h"

#include <vernier/sampler.h>

#include <algorithm>

namespace vernier {

// Counts the updates of an epoch that begins after `steps` updates.
std::int64_t Plan::steps_of_epoch(std::int64_t epoch, std::int64_t steps, std::int64_t samples) {
  std::int64_t count = 0;
  for (auto left = roles_.wiring.task->batches_per_epoch(); left > 0; ++count) {
    left -= roles_.accumulation.batches_per_update(steps + count, epoch, samples);
  }
  return count;
}

void Plan::count_steps(TrainerRun& run, std::int64_t epochs) {
  const auto batches = roles_.task->batches_per_epoch();
  if (batches == endless) {
    refuse("[run] epochs: the data of " + roles_.task->id() + " never end; set [run] steps, and leave epochs out");
  }
  constexpr std::int64_t most = 1'000'000'000;  // can be counted one by one in a few seconds
  const bool is_too_many = __builtin_mul_overflow(epochs, batches, &run.steps);
  if (is_too_many || (roles_.accumulation->gathers() && run.steps > most)) {
    throw Error(c10::str(epochs, " epochs of ", batches, " steps are more than can be counted; lower [run] epochs"),
                Error::Kind::configuration);
  }
  if (!roles_.accumulation->gathers()) return;
  epochs_ = epochs;
  samples_ = batches_.samples(run);
  first_ = roles_.accumulation.batches_per_update(0, 0, samples_);
  run.steps = 0;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) run.steps += steps_of_epoch(epoch, run.steps, samples_);
}

void Plan::count_again(TrainerRun& run) {
  if (epochs_ == 0 || !roles_.accumulation->gathers()) return;
  adapts_ = adapts_ || roles_.accumulation->batches_per_update(0, 0, samples_) != first_;
  if (!adapts_) return;
  const auto of_epoch = roles_.wiring.task->batches_per_epoch(), left = epochs_ * of_epoch - run.batches_drawn;
  const auto wanted = roles_.accumulation->batches_per_update(run.step, run.batches_drawn / of_epoch, samples_);
  const auto updates = [&](std::int64_t batches) { return (batches + wanted - 1) / std::max<std::int64_t>(wanted, 1); };
  run.steps = run.step + std::max<std::int64_t>(0, left / of_epoch * updates(of_epoch) + updates(left % of_epoch));
}

// Returns in how many epochs the run's steps are, the last one perhaps not whole.
std::int64_t Plan::epochs_of(TrainerRun& run) {
  const auto batches = roles_.task->batches_per_epoch();
  if (batches == endless) {
    log(Level::warning, "run",
        "the data never end, so the run is validated after its last step alone; set [run] validate_every to a number");
    return 1;
  }
  if (!roles_.accumulation->gathers()) return run.steps / batches + (run.steps % batches != 0 ? 1 : 0);
  constexpr std::int64_t most = 100'000;  // are counted one by one; nobody needs to know of more
  const auto samples = batches_.samples(run);
  std::int64_t epochs = 0;
  for (std::int64_t steps = 0; steps < run.steps && epochs < most; ++epochs) {
    steps += steps_of_epoch(epochs, steps, samples);
  }
  return epochs;
}

void Plan::count_validations(TrainerRun& run) {
  constexpr std::int64_t most = 1'000'000'000'000;  // a million a second take 12 days
  if (run.steps > most) {
    throw Error(c10::str("[run] has ", run.steps, " steps, more than can be trained; lower `steps` or `epochs`"),
                Error::Kind::configuration);
  }
  auto& every = validate_every_;
  if (run.measures && run.measures->empty()) {  // the task holds nothing out
    if (every == each_epoch) every = 0;
    return;
  }
  if (every > run.steps && run.steps > 0 && run.measures) {
    log(Level::warning, "run",
        c10::str("validate_every = ", every, ", and the run has ", run.steps, " steps, so it is ",
                 "validated after the last alone; lower [run] validate_every"));
  }
  if (every == each_epoch) {
    run.validations = epochs_of(run);
  } else {
    run.validations = every == 0 ? 1 : run.steps / every + (run.steps % every != 0 ? 1 : 0);
  }
}

bool Plan::validates_now(const Run& run) const {
  const bool ends_epoch = run.batches_drawn / roles_.wiring.task->batches_per_epoch() > run.epoch;
  return run.step == run.steps || (validate_every_ == each_epoch && ends_epoch) ||
         (validate_every_ > 0 && run.step % validate_every_ == 0);
}

}  // namespace vernier
