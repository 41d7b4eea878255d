// The life of a run around its steps: prepared, resumed, trained, ended. See step.h for the step.
#pragma once

#include "between_steps.h"
#include "ending.h"
#include "preparation.h"
#include "run/process/plugin_times.h"
#include "saving.h"
#include "step.h"
#include "validation.h"

namespace vernier {

// Main thread only.
class TrainingLoop {
 public:
  // validate_every: as for Plan. stop: a signal's number, which ends the run after the current step.
  TrainingLoop(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop);

  // Builds model, data and states: everything but training; see prepare_plugins().
  void prepare(TrainerRun& run, std::int64_t epochs, const InitModel& init = {}, bool trains = true);
  // Continues from a snapshot, after prepare. Refuses what restore_snapshot() refuses.
  void resume(TrainerRun& run, State snapshot, bool allow_inexact = false) {
    saving_.resume(run, std::move(snapshot), allow_inexact);
  }

  bool is_finished(const Run& run) const;  // true: nothing is left to do

  // Trains from run.step to run.steps. Writes a checkpoint at the end, at a signal, and if something throws between two
  // steps or before the update of one; on a CPU, none if a weight is not finite. An exception is emitted as
  // RunFailed and rethrown with plugin and step.
  Outcome train(TrainerRun& run);
  // The same, a step a call, for a caller with a loop of its own. The first call begins the run. The call that trains
  // the last step also ends the run. Returns whether it trained a step: false if none followed, and the run ends.
  bool train_step(TrainerRun& run);
  bool is_running() const { return is_running_; }  // true between RunBegin and RunEnd

  // The result of train(), or all that is known if it threw.
  const Outcome& outcome() const { return outcome_; }
  // The outcome so far, for a plugin that ends the process in mid-run; error: why.
  Outcome outcome_now(const Run& run, const std::string& error);

  Roles& roles() { return roles_; }
  Ending& ending() { return ending_; }
  Step& step() { return step_; }
  Validation& validation() { return validation_; }
  Saving& saving() { return saving_; }
  RequestHandler& requests() { return requests_; }

 private:
  void saved_on_failure(TrainerRun& run, const std::function<void()>& part);
  void begin(TrainerRun& run);
  void advance(TrainerRun& run);
  void conclude(TrainerRun& run);
  void end(TrainerRun& run);

  Roles roles_;
  SnapshotRing snapshots_;
  Requests asked_;
  Ending ending_;
  Step step_;
  Validation validation_;
  Saving saving_;
  RequestHandler requests_;
  PluginTimes plugin_times_;
  Outcome outcome_;
  std::unique_ptr<Control> control_;
  bool is_running_ = false;
};

}  // namespace vernier
