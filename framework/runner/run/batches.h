// Draws from the task what the updates train on.
#pragma once

#include <functional>
#include <optional>

#include "checked_roles.h"
#include "run/state/snapshot_ring.h"
#include "step_clock.h"

namespace vernier {

// Main thread only.
class Batches {
 public:
  Batches(Roles& roles, const SnapshotRing& snapshots, StepClock& clock)
      : roles_(roles), snapshots_(snapshots), clock_(clock) {}

  void skip_dropped(TrainerRun& run);            // skips batches that a rewind has dropped
  Batch next(TrainerRun& run);                   // all batches of an update, which ends with an epoch
  std::int64_t drawn() const { return drawn_; }  // batches of the task in the last next(), dropped ones too
  void end_epoch(TrainerRun& run);               // if the task's data have been drawn once more
  std::int64_t samples(TrainerRun& run);         // samples of a whole batch of the task; draws one, and puts it back
  // The next batches come from this function; null: from the task again.
  void replay(std::function<Batch()> replayed) { replayed_ = std::move(replayed); }

  void save(State& state) const {
    if (samples_) state.put("samples_of_batch", *samples_);
  }
  void load(const State& state);

 private:
  Batch gather(TrainerRun& run);
  Batch draw();

  Roles& roles_;
  const SnapshotRing& snapshots_;
  StepClock& clock_;
  std::function<Batch()> replayed_;
  std::int64_t drawn_ = 1;
  std::optional<std::int64_t> samples_;  // in a whole batch, once that is known
};

}  // namespace vernier
