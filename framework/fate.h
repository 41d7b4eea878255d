// What became of a step's update, and when the host knows of it: at once, or a step late (Run::learns_late). The rule is
// fixed, so runs stay reproducible.
#pragma once

#include <vernier/run.h>

#include <optional>
#include <string>
#include <vector>

#include "device.h"

namespace vernier {

struct Fate {
  bool is_skipped = false;
  bool has_overflowed = false;  // as the scaler found it
  std::string gradients;        // some of those that were not finite; neither: a listener has vetoed the update
};

// Of all steps in turn. Main thread only.
class Fates {
 public:
  void look(const Run& run);  // when the gradients are computed, before a listener clips them, which spreads a nan
  // When the update is done: run.updates, run.amp and the notice, of the step known now. Where no scaler has looked at the
  // gradients, and the loss is not finite, the notice non_finite, unless a callback has told it; not where the host
  // learns late.
  void count(Run& run);
  std::optional<Fate> last(); // of the step before, where it was not known then and count() has not told it; waits for it
  static void tell(Run& run, std::int64_t step, const Fate& fate);  // the notice step_skipped
  void forget();

  void save(State& state);  // what last() gives
  void load(const State& state);

 private:
  Fate now(const Run& run);
  void send(const Run& run);
  void tell_bad_loss(Run& run);

  std::vector<std::string> not_finite_;  // parameters whose gradients the step found so
  bool is_loss_bad_ = false;
  LateNumbers sent_;                     // whether the step is skipped, has overflowed; of each gradient whether it is
  std::vector<std::string> sent_names_;  // not finite, by the names of these parameters
  std::optional<Fate> last_;
};

}  // namespace vernier
