// The outcome of each update, and when the host knows it: at once, or one step late (Run::results_are_late). The rule
// is fixed, so runs stay reproducible.
#pragma once

#include <vernier/host.h>

#include <optional>
#include <string>
#include <vector>

#include "device.h"

namespace vernier {

struct KnownUpdate {
  UpdateResult result = UpdateResult::applied;
  std::string gradients;        // names of some that were not finite
  std::optional<double> scale;  // of the loss, where it stayed on the device
};

// The log of all steps in turn. Main thread only.
class UpdateLog {
 public:
  // When the gradients are computed, before a listener clips them, which spreads a NaN.
  void look(const Run& run);
  // At the end of the step: counts it, and the updates that are known now, into run.updates, run.last_update and
  // run.amp. Writes the notice `step_skipped`; and `non_finite` where no scaler looks at the gradients, the loss is not
  // finite, and no callback has reported it. The latter not where results are late. is_mixed: the step ran in mixed
  // precision.
  void count(TrainerRun& run, bool is_mixed);
  // The update of the step before, where it was not known then and count() has not counted it. Waits for the device.
  std::optional<KnownUpdate> last();
  // Counts last() after the last step of a run.
  void conclude(TrainerRun& run);

  void save(State& state);  // what last() gives
  void load(const State& state);

 private:
  static void count_one(TrainerRun& run, std::int64_t step, const KnownUpdate& update);
  void count_scale(TrainerRun& run);
  KnownUpdate now(const Run& run);
  void send(const Run& run);

  std::vector<std::string> not_finite_;  // parameters whose gradients the step found so
  bool is_loss_bad_ = false;
  LateNumbers sent_;                     // skipped; found_inf; of each gradient whether it is not finite,
  std::vector<std::string> sent_names_;  // by the names of these parameters; the scale of the loss
  torch::Tensor scale_;                  // of this step, if it is on a device
  bool has_sent_scale_ = false;
  std::optional<KnownUpdate> last_;
};

}  // namespace vernier
