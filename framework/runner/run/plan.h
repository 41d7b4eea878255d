// How many updates and validations a run has, and when: see [run] steps, epochs and validate_every.
#pragma once

#include "batches.h"

namespace vernier {

// Main thread only.
class Plan {
 public:
  // validate_every: steps, 0: only after the last, or a word (wiring.h).
  Plan(Roles& roles, Batches& batches, std::int64_t validate_every)
      : roles_(roles), batches_(batches), validate_every_(validate_every) {}

  void count_steps(TrainerRun& run, std::int64_t epochs);  // sets run.steps, of a run in epochs
  // Called after each update: sets run.steps again if the accumulation's answers depend on what was trained.
  void count_again(TrainerRun& run);
  void count_validations(TrainerRun& run);  // sets run.validations, once it is known what is measured
  // Returns whether a validation comes after the step that was counted last.
  bool validates_now(const Run& run) const;

  void save(State& state) const {
    if (adapts_) state.put("adapts", std::int64_t{1});
  }
  void load(const State& state) { adapts_ = state.has("adapts"); }

 private:
  std::int64_t steps_of_epoch(std::int64_t epoch, std::int64_t steps, std::int64_t samples);
  std::int64_t epochs_of(TrainerRun& run);

  Roles& roles_;
  Batches& batches_;
  std::int64_t validate_every_;
  std::int64_t epochs_ = 0;   // epochs that the run is planned in, if its accumulation gathers batches; else 0
  std::int64_t samples_ = 0;  // samples of a whole batch
  std::int64_t first_ = 0;    // the answer of batches_per_update() for the first update, before anything was trained
  bool adapts_ = false;       // the answer to this question has changed since
};

}  // namespace vernier
