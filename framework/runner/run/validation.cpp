#include "validation.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "step.h"

namespace vernier {

bool Validation::validate(Run& run) {
  if (run.is_stopping()) return false;
  run.metrics.clear();  // those of the step: at Validated there are the validation's
  const auto begin = std::chrono::steady_clock::now();
  const auto loss = evaluate(run);
  if (run.is_stopping()) return false;
  if (!loss.defined()) return true;
  const double value = loss.item<double>();  // waits for the device
  const double seconds = seconds_since(begin);
  parts_.clock.add_validation(seconds);
  run.metrics.set("validation_loss", value);
  run.metrics.set_time("validation_time", seconds);
  auto& outcome = parts_.outcome;
  outcome.validation_loss = value;
  outcome.best_validation_loss = std::fmin(value, outcome.best_validation_loss.value_or(value));
  parts_.wiring.bus.emit(Event::Validated, run);
  return true;
}

std::optional<double> Validation::loss(Run& run) {
  std::optional<double> value;
  parts_.calls.attributed(run, [&] {
    run.metrics.clear();
    const auto loss = evaluate(run);
    if (!run.is_stopping() && loss.defined()) value = loss.item<double>();
  });
  return value;
}

torch::Tensor Validation::evaluate(Run& run, const std::function<torch::Tensor()>& body) {
  // Modules that a task keeps in evaluation mode (frozen ones) stay so; parents come first in the list.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& module : run.model->modules()) modes.emplace_back(module, module->is_training());
  const auto restore = c10::make_scope_exit([&] {
    for (auto& [module, training] : modes) module->train(training);
  });
  run.model->eval();
  auto loss = in_callbacks(run, body);
  parts_.calls.note(parts_.wiring.task.get());  // whose loss it is
  return loss;
}

torch::Tensor Validation::in_callbacks(Run& run, const std::function<torch::Tensor()>& innermost) {
  const torch::NoGradGuard no_grad;
  const auto checked = [](torch::Tensor loss) { return loss.defined() ? mean_of(std::move(loss), "validate") : loss; };
  std::function<torch::Tensor()> body = [&] {
    return forward(parts_.calls, parts_.precision, [&] { return checked(innermost()); });
  };
  for (const auto& callback : parts_.wiring.callbacks) {
    body = [this, &run, &callback, &checked, inner = std::move(body)] {
      parts_.calls.note(callback.get());
      return checked(callback->validate(run, [&] {
        auto loss = inner();
        parts_.calls.note(callback.get());
        return loss;
      }));
    };
  }
  return body();
}

}  // namespace vernier
