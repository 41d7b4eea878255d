// Snapshots of a run and its checkpoints: when they are taken, written and loaded.
#pragma once

#include <functional>
#include <string>

#include "requests.h"
#include "run/state/snapshot.h"
#include "step.h"
#include "validation.h"

namespace vernier {

// Main thread only.
class Saving {
 public:
  // The configuration as resolved, a JSON object, which is compared on resume.
  using Configuration = std::function<std::string(Keys)>;

  Saving(Roles& roles, Step& step, Validation& validation, Requests& requests, SnapshotRing& snapshots)
      : roles_(roles), step_(step), validation_(validation), requests_(requests), snapshots_(snapshots) {}
  void keep_configuration(Configuration configuration) { configuration_ = std::move(configuration); }
  std::string configured(Keys keys) const { return configuration_ ? configuration_(keys) : ""; }

  // All that the run depends on; shares the live tensors.
  State snapshot(TrainerRun& run, Unsavable unsavable = Unsavable::refused);
  // Continues from a snapshot, in a prepared run. Refuses what restore_snapshot() refuses.
  void resume(TrainerRun& run, State snapshot, bool allow_inexact);
  void note_swap(TrainerRun& run);  // called after each swap, also after those that a resume repeats
  // Goes back to a snapshot in memory, as a plugin has asked (Control::rewind), between two steps.
  void rewind(TrainerRun& run);

  // Writes a checkpoint between two steps, and not twice. Throws Error if a weight is not finite.
  void save_now(TrainerRun& run);
  void save_finite(TrainerRun& run);          // the same, also twice
  void save_unless_spoiled(TrainerRun& run);  // on a CPU, not if loss and weights are not finite
  // Returns the first weight that is not finite, or "". On a CPU, and only if the loss is not finite either.
  std::string spoiled_weight(const Run& run);
  void save_what_is_whole(TrainerRun& run);      // after a failure
  void save_in_memory_if_due(TrainerRun& run) {  // Control::keep_savepoints
    if (snapshots_.is_due(run.step)) snapshots_.add(run.step, snapshot(run));
  }
  // Called when something comes after this step's checkpoint that the checkpoint lacks.
  void outdate() { saved_step_ = -1; }
  bool is_saved(const Run& run) const { return saved_step_ == run.step; }
  void whole_again() { is_whole_ = true; }  // after a failed step was undone

  // While the result lives, the run's state is not that of finished steps, and is not saved if something fails. If an
  // error leaves the scope, that stays so.
  auto changing() {
    is_whole_ = false;
    return OnSuccess([this] { is_whole_ = true; });
  }

 private:
  void load(TrainerRun& run, const State& own);
  void save(TrainerRun& run, Unsavable unsavable = Unsavable::refused);
  std::string bad_weight(const Run& run);

  Roles& roles_;
  Step& step_;
  Validation& validation_;
  Requests& requests_;
  SnapshotRing& snapshots_;
  Configuration configuration_;
  std::int64_t saved_step_ = -1;
  bool is_whole_ = true;
};

std::string not_finite(const Run& run);  // the first weight that is not finite, or ""

}  // namespace vernier
