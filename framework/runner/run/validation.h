// Validations: those of the run, and those that somebody asks for.
#pragma once

#include <vernier/random_state.h>
#include <vernier/with_weights.h>

#include <functional>
#include <optional>

#include "base/asked_weights.h"
#include "checked_roles.h"
#include "run/state/outcome.h"
#include "step_clock.h"

namespace vernier {

// Returns the better direction of a metric: the task's answer, or the one of its name.
Better better_of(const Run& run, const std::string& metric);

// Main thread only.
class Validation {
 public:
  Validation(Roles& roles, StepClock& clock) : roles_(roles), clock_(clock) {}

  // Validates, and emits Validated. Returns false if a signal cut it short: then it is repeated on resume.
  bool validate(TrainerRun& run);
  std::optional<double> loss_now(TrainerRun& run);  // the same; returns the loss, if there is one
  // A validation comes after the last step, and has not been done.
  void schedule(bool is_due) { is_due_ = is_due; }
  bool is_due() const { return is_due_; }
  // A listener of Validated threw, and those before it could not be made to forget the validation.
  bool is_half_counted() const { return is_half_counted_; }
  const ValidationOutcome& outcome() const { return outcome_; }

  // Runs `body` as a validation: with the model of the run, in evaluation mode, without gradients, in the run's
  // precision, within Plugin::evaluate of all plugins. Random numbers that are drawn meanwhile are drawn again
  // afterwards. body returns a loss, or an undefined tensor. Whoever needs the model of a run asks this function.
  torch::Tensor evaluate(TrainerRun& run, const std::function<torch::Tensor()>& body);
  torch::Tensor evaluate(TrainerRun& run) {
    return evaluate(run, [&] { return roles_.task->validate(run); });
  }
  // Runs `body` once, as evaluate() would, to use the model and not to validate it. A plugin may evaluate several
  // models, as callback/ema does with validate = "both". The model of the run is the last of them.
  void use(TrainerRun& run, const std::function<void()>& body);
  // The ids of the plugins that put weights of their own into the model in the last evaluation.
  const std::vector<std::string>& averages() const { return averages_; }
  // The weights that an evaluation uses in place of the model's own, paired with the model's tensors, and the id of the
  // plugin that gives them. Both are empty for the model's own. A plugin that does not call with_weights() has its id
  // alone here.
  struct Average {
    std::string by;
    AskedWeights::Pairs weights;
  };
  Average average(TrainerRun& run);
  bool leaves_averages_out() const { return leaves_averages_out_; }
  void leave_averages_out() { leaves_averages_out_ = true; }  // from all later evaluations
  // The record of the model of the run for a checkpoint, which init_from reads: sdk/core/files/weights.h. "": none.
  std::string record(TrainerRun& run, const State& snapshot);
  // The weights became those of an earlier validation again, and stay so until the next step.
  void note_restored(const Run& run, std::int64_t step) { restored_ = {run.step, step}; }
  std::int64_t step_of_weights(const Run& run) const {
    return restored_.first == run.step ? restored_.second : run.step;
  }

  void save(State& state) const;
  void load(const State& state);

 private:
  void note_outcome(const Run& run);
  torch::Tensor in_plugins(TrainerRun& run, std::function<torch::Tensor()> body);

  Roles& roles_;
  StepClock& clock_;
  bool is_due_ = false, is_half_counted_ = false;
  ValidationOutcome outcome_;
  std::vector<std::string> averages_;
  bool leaves_averages_out_ = false;
  Average asked_;                                              // average() returns it
  std::pair<std::int64_t, std::int64_t> restored_ = {-1, -1};  // at a step, those of another one
};

// The averages of the plugins, for callback/early_stopping.
class TrainerAverages : public Averages {
 public:
  TrainerAverages(Roles& roles, Validation& validation) : roles_(roles), validation_(validation) {}
  State keep(const Plugin& requester) override;
  void put_back(const Run& run, const State& kept, std::int64_t step) override;

 private:
  Roles& roles_;
  Validation& validation_;
};

}  // namespace vernier
