// The training step. Step::step is the function to read first.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "batches.h"
#include "checked_roles.h"
#include "ending.h"
#include "gpu/device_graph.h"
#include "plan.h"
#include "run/state/transaction.h"
#include "step_clock.h"
#include "update_log.h"

namespace vernier {

// Owns what steps alone change. Main thread only.
class Step {
 public:
  Step(Roles& roles, SnapshotRing& snapshots, const Ending& ending, std::int64_t validate_every)
      : roles_(roles), snapshots_(snapshots), ending_(ending), plan_(roles, batches_, validate_every) {}
  void note_plugins(TrainerRun& run);  // after prepare, and after a swap
  void record_with(std::unique_ptr<RecordedPasses> passes) { passes_ = std::move(passes); }  // before prepare

  enum class Until { end, gradients };  // gradients: the step ends when they are computed, and nothing uses them
  void step(TrainerRun& run, Until until = Until::end);

  // Computes the gradients of run.batch. smaller: micro-batches that run out of memory are split again, and graphs of
  // the device may stand for the operators. once: every operator is called, as whoever looks at them needs.
  enum class Tries { once, smaller };
  void compute_gradients(TrainerRun& run, Tries tries);
  torch::Tensor recompute(TrainerRun& run);  // see Control::recompute

  Transaction& transaction() { return transaction_; }
  Batches& batches() { return batches_; }
  Plan& plan() { return plan_; }
  StepClock& clock() { return clock_; }
  UpdateLog& update_log() { return update_log_; }
  // Micro-batches of the last step. A listener may overwrite run.micro_batches.
  std::int64_t micro_batches() const { return micro_batches_; }
  RecordedPasses* passes() { return passes_.get(); }  // null: nothing is recorded

 private:
  void begin_step(TrainerRun& run);
  void emit(Event event, TrainerRun& run, Part next);  // next: what the time after the event is spent on
  void compute_micro_batches(TrainerRun& run, Tries tries);
  void compute_micro_batches_that_fit(TrainerRun& run);
  void all_reduce(TrainerRun& run);
  void share_weights(TrainerRun& run);
  void finish_step(TrainerRun& run);

  Roles& roles_;
  Calls& calls_ = roles_.calls;
  const CheckedTask& task_ = roles_.task;
  const CheckedPrecision& precision_ = roles_.precision;
  const CheckedScaler& scaler_ = roles_.scaler;
  const CheckedAccumulation& accumulation_ = roles_.accumulation;
  const CheckedOptimizer& optimizer_ = roles_.optimizer;
  Ranks& ranks_ = roles_.ranks;
  SnapshotRing& snapshots_;
  const Ending& ending_;
  Transaction transaction_{roles_.wiring};
  StepClock clock_;
  Batches batches_{roles_, snapshots_, clock_};
  Plan plan_;
  UpdateLog update_log_;
  std::unique_ptr<RecordedPasses> passes_;
  std::int64_t micro_batches_ = 0;
  std::array<bool, event_count> has_listeners_{};  // the clock is not read around the other events
};

}  // namespace vernier
