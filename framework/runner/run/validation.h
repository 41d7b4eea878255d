// Validations: those of the run, and those that somebody asks for.
#pragma once

#include <vernier/random_state.h>
#include <vernier/with_weights.h>

#include <functional>
#include <optional>

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
  const ValidationOutcome& outcome() const { return outcome_; }

  // Runs `body` as a validation: with the model of the run, in evaluation mode, without gradients, in the run's
  // precision, within Plugin::evaluate of all plugins. Random numbers that are drawn meanwhile are drawn again
  // afterwards. body returns a loss, or an undefined tensor. Whoever needs the model of a run asks this function.
  torch::Tensor evaluate(TrainerRun& run, const std::function<torch::Tensor()>& body);
  torch::Tensor evaluate(TrainerRun& run) {
    return evaluate(run, [&] { return roles_.task->validate(run); });
  }
  // The ids of the plugins that put weights of their own into the model in the last evaluation. The last one's are
  // those that it had; empty: the trained ones.
  const std::vector<std::string>& averages() const { return averages_; }

  void save(State& state) const;
  void load(const State& state);

 private:
  void note_outcome(const Run& run);
  torch::Tensor in_plugins(TrainerRun& run, const std::function<torch::Tensor()>& innermost);

  Roles& roles_;
  StepClock& clock_;
  bool is_due_ = false;
  ValidationOutcome outcome_;
  std::vector<std::string> averages_;
};

// The averages of the plugins, for callback/early_stopping.
class TrainerAverages : public Averages {
 public:
  TrainerAverages(Roles& roles, const Validation& validation) : roles_(roles), validation_(validation) {}
  State keep(const Plugin& requester) override;
  void put_back(const State& kept) override;

 private:
  Roles& roles_;
  const Validation& validation_;
};

}  // namespace vernier
