// Validations: those of the run, and those that somebody asks for.
#pragma once

#include <functional>
#include <optional>

#include "parts.h"

namespace vernier {

// Which values of a metric are better, as the task says it, or by its name.
Better better_of(const Run& run, const std::string& metric);

// Main thread only.
class Validation {
 public:
  explicit Validation(Parts& parts) : parts_(parts) {}

  // Validates, and emits Validated. Returns false if a signal cut it short: it is repeated on resume, so that a resumed
  // run is the run that was not stopped.
  bool validate(TrainerRun& run);
  // Runs `body` as a validation: the model in evaluation mode, without gradients, in the run's precision, within the
  // callbacks' validate(). body returns a loss, or an undefined tensor.
  torch::Tensor evaluate(TrainerRun& run, const std::function<torch::Tensor()>& body);
  torch::Tensor evaluate(TrainerRun& run) {
    return evaluate(run, [&] { return parts_.task->validate(run); });
  }

 private:
  void note_outcome(const Run& run);
  torch::Tensor in_plugins(TrainerRun& run, const std::function<torch::Tensor()>& innermost);

  Parts& parts_;
};

}  // namespace vernier
