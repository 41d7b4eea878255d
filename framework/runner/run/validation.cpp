#include "validation.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/metric_info.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "core/step_results.h"
#include "step.h"

namespace vernier {

Better better_of(const Run& run, const std::string& metric) {
  if (run.measures) {
    const auto found = std::ranges::find(*run.measures, metric, &Measure::name);
    if (found != run.measures->end()) return found->better;
  }
  const auto* info = metric_info(metric);
  return info == nullptr ? Better::unknown : info->better;
}

bool Validation::validate(TrainerRun& run) {
  if (run.is_stopping()) return false;
  parts_.agree(run, "a validation");
  HostApi::clear(run.metrics);  // those of the step: at Validated there are the validation's
  const auto begin = std::chrono::steady_clock::now();
  const auto loss = evaluate(run);
  if (run.is_stopping()) return false;
  if (!loss.defined()) return true;
  const double value = loss.item<double>();  // waits for the device
  const double seconds = seconds_since(begin);
  parts_.clock.add_validation(seconds);
  run.metrics.set("validation_loss", value);
  run.metrics.set_time("validation_time", seconds);
  HostApi::emit(parts_.wiring.bus, Event::Validated, run);
  note_outcome(run);
  return true;
}

// After the listeners: callback/early_stopping puts other weights into the model, and their metrics into run.metrics.
void Validation::note_outcome(const Run& run) {
  const auto note = [](double value, Better better, std::optional<double>& last, std::optional<double>& best) {
    last = value;
    if (better == Better::unknown || !std::isfinite(value)) return;
    if (!best || (better == Better::higher ? value > *best : value < *best)) best = value;
  };
  auto& outcome = parts_.outcome;
  for (const auto* metric : run.metrics.set_now()) {
    if (metric->is_time) continue;
    if (metric->name == "validation_loss") {
      note(metric->value(), Better::lower, outcome.validation_loss, outcome.best_validation_loss);
    } else {
      auto& [last, best] = outcome.measured[metric->name];
      note(metric->value(), better_of(run, metric->name), last, best);
    }
  }
}

torch::Tensor Validation::evaluate(TrainerRun& run, const std::function<torch::Tensor()>& body) {
  // Modules that a task keeps in evaluation mode (frozen ones) stay so; parents come first in the list.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& module : run.model->modules()) modes.emplace_back(module, module->is_training());
  const auto restore = c10::make_scope_exit([&] {
    for (auto& [module, training] : modes) module->train(training);
  });
  run.model->eval();
  auto loss = in_plugins(run, body);
  parts_.calls.note(parts_.wiring.task.get());  // whose loss it is
  return loss;
}

torch::Tensor Validation::in_plugins(TrainerRun& run, const std::function<torch::Tensor()>& innermost) {
  const torch::NoGradGuard no_grad;
  const auto checked = [&run](torch::Tensor loss) {
    if (loss.defined()) refuse_wrong_loss(loss, run.device, LossFrom::validation);
    return loss;
  };
  std::function<torch::Tensor()> body = [&] {
    return forward(parts_.calls, parts_.precision, [&] { return checked(innermost()); });
  };
  auto plugins = parts_.wiring.plugins();  // callbacks first: the first call is the innermost
  std::ranges::stable_partition(plugins,
                                [](const auto* each) { return dynamic_cast<const Callback*>(each) != nullptr; });
  for (auto* plugin : plugins) {
    body = [this, &run, plugin, &checked, inner = std::move(body)] {
      parts_.calls.note(plugin);
      const StepNumbers before(run);
      auto result = checked(plugin->evaluate(run, [&] {
        auto loss = inner();
        parts_.calls.note(plugin);
        return loss;
      }));
      before.refuse_wrong(Event::Validated, run);
      return result;
    };
  }
  return body();
}

}  // namespace vernier
