// What happens once, before the first step: plugins are prepared, the model is moved and named.
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/model_adapter.h>

#include <set>

#include "control.h"
#include "core/plugin_calls.h"
#include "training_loop.h"

namespace vernier {

void TrainingLoop::prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init) {
  run.stop = &stop_;
  run.results_are_late = run.results_are_late || !run.device.is_cpu();
  control_ = std::make_unique<TrainerControl>(*this, run);
  run.control = control_.get();
  attributed(run, [&] {
    for (auto* plugin : wiring_.plugins()) {
      if (run.is_stopping()) return;
      called_ = plugin;
      const auto parameters = run.parameters.size();
      plugin->prepare(run);
      refuse_other_parameters(run, parameters);
      if (plugin != wiring_.task.get()) continue;
      prepare_task(run, init);
      if (epochs > 0) run.steps = steps_of(epochs, run);
    }
    note_listeners();
  });
}

void TrainingLoop::prepare_task(Run& run, const std::function<void(torch::nn::Module&)>& init) {
  if (run.model == nullptr) throw Error("its prepare set no run.model", Error::Kind::plugin);
  called_ = nullptr;
  if (init) init(*run.model);
  for (auto* plugin : wiring_.plugins()) {
    called_ = plugin;
    if (auto* adapter = dynamic_cast<ModelAdapter*>(plugin)) adapter->adapt(run);
  }
  called_ = wiring_.task.get();
  run.model->to(run.device);
  run.model->train();
  built_ = built_model(*run.model);
  name_parameters(run);
  const auto batches = task_->batches_per_epoch();
  if (batches < 1) {
    throw Error(c10::str("its batches_per_epoch is ", batches, ", and must be at least 1"), Error::Kind::plugin);
  }
  if (accumulation_->gathers()) samples_of_batch(run);  // now, for the first batch is a whole one
}

// A tensor that is registered in two modules (a tied weight) is one parameter, under its first name, as in Python.
void TrainingLoop::name_parameters(Run& run) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& entry : run.model->named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    run.parameters.push_back({entry.key(), tensor, tensor});
  }
}

std::int64_t TrainingLoop::steps_of(std::int64_t epochs, Run& run) {
  const auto batches = task_->batches_per_epoch();
  std::int64_t steps = 0;
  constexpr std::int64_t most = 1'000'000'000;  // that are counted one by one in a few seconds
  const bool is_too_many = __builtin_mul_overflow(epochs, batches, &steps);
  if (is_too_many || (accumulation_->gathers() && steps > most)) {
    throw Error(c10::str(epochs, " epochs of ", batches, " steps are more than can be counted; lower [run] epochs"),
                Error::Kind::configuration);
  }
  if (!accumulation_->gathers()) return steps;
  steps = 0;
  const auto samples = samples_of_batch(run);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (auto left = batches; left > 0; ++steps) {
      left -= std::max<std::int64_t>(1, accumulation_->batches_per_update(steps, epoch, samples));
    }
  }
  return steps;
}

}  // namespace vernier
