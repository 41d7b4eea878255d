// Actions that a plugin may request between two steps, when the run is whole: for people who steer a run.
#pragma once

#include <vernier/value.h>

#include <cstdint>
#include <optional>
#include <string>

namespace vernier {

// The argument of the function that Control::between_steps() was given; valid while that function runs. Each function
// acts at once. If it refuses, it throws Error and leaves the run as before; the run continues if the error is caught.
class BetweenSteps {
 public:
  // Swaps like Control::swap(). The new plugins are in their roles on return; the next step lists them in run.swapped.
  virtual void swap(const Table& roles) = 0;
  // Validates, and emits Validated, as after a step that a validation follows. Returns the loss; nothing if the task
  // has nothing held out, or if a signal came.
  virtual std::optional<double> validate() = 0;
  // Gives the run as it is to the checkpoint plugin, also if it has got this step before. Returns the plugin's id.
  // Throws Error if a weight is not finite.
  virtual std::string save() = 0;
  // Has the monitors of this name, "jsonl", look every so many steps from now on. A resumed run has the interval of its
  // configuration again.
  virtual void set_every(const std::string& monitor, std::int64_t steps) = 0;

 protected:
  ~BetweenSteps() = default;
};

}  // namespace vernier
