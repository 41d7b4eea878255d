// The outcome of each update, which the host knows at once, or always one step late (Run::results_are_late).
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/process/device.h"

namespace vernier {

struct KnownUpdate {
  UpdateResult result = UpdateResult::applied;
  std::string gradients;             // names of the first that were not finite
  std::optional<double> scale = {};  // the scaler's after the update, if it stayed on the device
  std::optional<std::int64_t> growth_tracker = {};
};

// The log of all steps in turn. Main thread only.
class UpdateLog {
 public:
  // Called before the first step and after a swap: the statistics have the scale of the scaler that there is now.
  void take_scale(TrainerRun& run, const Scaler::Current& scale);
  // Called at the begin of a step, and after each forward pass in it. is_mixed: it computed in fewer bits than float32.
  void begin() { is_forward_seen_ = false; }
  void see_forward(bool is_mixed) { is_mixed_ = is_mixed || (std::exchange(is_forward_seen_, true) && is_mixed_); }
  // Called when the gradients are computed, and before a listener clips them: clipping spreads a NaN.
  void look(const Run& run);
  // Called at the end of the step: counts it, and the updates that are known now, in run.updates, run.last_update and
  // run.amp. Writes the notice `step_skipped`. Where results are not late, also writes `non_finite` if the loss is not
  // finite, no scaler looks at the gradients, and no callback has reported it. scale: after the update of the scaler.
  void count(TrainerRun& run, const Scaler::Current& scale);
  // Returns the update of the step before, if count() has not counted it because it was late. Waits for the device.
  std::optional<KnownUpdate> last();
  // Counts last() after the last step of a run.
  void conclude(TrainerRun& run);
  const torch::Tensor& best_loss() const { return best_loss_; }  // the lowest of any step

  void save(State& state);  // saves the state behind last() and best_loss()
  void load(const State& state, c10::Device device);

 private:
  static void count_one(TrainerRun& run, std::int64_t step, const KnownUpdate& update);
  KnownUpdate now(const Run& run);
  void send(const Run& run, const Scaler::Current& scale);

  std::vector<std::string> not_finite_;  // parameters whose gradients the step found so
  bool is_loss_bad_ = false;
  bool is_mixed_ = false, is_forward_seen_ = false;  // a step whose graphs were replayed is as the one before it
  LateNumbers sent_;                                 // skipped; found_inf; of each gradient whether it is not finite,
  std::vector<std::string> sent_names_;  // by the names of these parameters; scale and growth tracker of the scaler
  bool has_sent_scale_ = false, has_sent_tracker_ = false;
  std::optional<KnownUpdate> last_;
  torch::Tensor best_loss_;
};

}  // namespace vernier
