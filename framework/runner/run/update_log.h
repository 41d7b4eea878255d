// The outcome of each update, which the host knows at once, or always one step late (Run::results_are_late).
#pragma once

#include <vernier/host.h>

#include <optional>
#include <string>
#include <vector>

#include "run/process/device.h"

namespace vernier {

struct KnownUpdate {
  UpdateResult result = UpdateResult::applied;
  std::string gradients;        // names of some that were not finite
  std::optional<double> scale;  // the loss scale, if it stayed on the device
};

// The log of all steps in turn. Main thread only.
class UpdateLog {
 public:
  // Called when the gradients are computed, and before a listener clips them: clipping spreads a NaN.
  void look(const Run& run);
  // Called at the end of the step: counts it, and the updates that are known now, in run.updates, run.last_update and
  // run.amp. Writes the notice `step_skipped`. Where results are not late, also writes `non_finite` if the loss is not
  // finite, no scaler looks at the gradients, and no callback has reported it. is_mixed: it ran in mixed precision.
  void count(TrainerRun& run, bool is_mixed);
  // Returns the update of the step before, if count() has not counted it because it was late. Waits for the device.
  std::optional<KnownUpdate> last();
  // Counts last() after the last step of a run.
  void conclude(TrainerRun& run);
  const torch::Tensor& best_loss() const { return best_loss_; }  // the lowest of any step

  void save(State& state);  // saves the state behind last() and best_loss()
  void load(const State& state, c10::Device device);

 private:
  static void count_one(TrainerRun& run, std::int64_t step, const KnownUpdate& update);
  void count_scale(TrainerRun& run);
  KnownUpdate now(const Run& run);
  void send(const Run& run);

  std::vector<std::string> not_finite_;  // parameters whose gradients the step found so
  bool is_loss_bad_ = false;
  LateNumbers sent_;                     // skipped; found_inf; of each gradient whether it is not finite,
  std::vector<std::string> sent_names_;  // by the names of these parameters; the scale of the loss
  torch::Tensor scale_;                  // the step's loss scale, if it is on a device
  bool has_sent_scale_ = false;
  std::optional<KnownUpdate> last_;
  torch::Tensor best_loss_;
};

}  // namespace vernier
