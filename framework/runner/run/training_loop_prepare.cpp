// Called once, before the first step: plugins are prepared, the model is moved and named.
#include <ATen/Version.h>
#include <torch/nn/module.h>
#include <torch/version.h>
#include <vernier/error.h>
#include <vernier/model_adapter.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "control.h"
#include "core/plugin_calls.h"
#include "files/json.h"
#include "run/state/snapshot.h"
#include "training_loop.h"

namespace vernier {

namespace {

// "/0/use" of the table "callback" is "callback.0.use".
std::string place_of(std::string table, const std::string& place) {
  std::ranges::transform(place, std::back_inserter(table), [](char c) { return c == '/' ? '.' : c; });
  return table;
}

}  // namespace

void TrainingLoop::prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init) {
  run.stop = &stop_;
  run.results_are_late = run.results_are_late || !run.device.is_cpu();
  control_ = std::make_unique<TrainerControl>(*this, run);
  run.control = control_.get();
  attributed(run, [&] {
    called_ = wiring_.distributed.get();
    wiring_.distributed->prepare(run);
    if (run.is_stopping()) return;
    if (ranks_.are_several()) run.stop = &ranks_.stop();
    refuse_other_programs(run);
    for (auto* plugin : wiring_.plugins()) {
      if (run.is_stopping()) return;
      if (plugin == wiring_.distributed.get()) continue;
      called_ = plugin;
      const auto parameters = run.parameters.size();
      plugin->prepare(run);
      refuse_other_parameters(run, parameters);
      if (plugin == wiring_.precision.get()) ranks_.refuse_masters_of_others(run);
      if (plugin != wiring_.task.get()) continue;
      prepare_task(run, init);
      if (epochs > 0) run.steps = steps_of(epochs, run);
      refuse_other_data(run);
      called_ = wiring_.distributed.get();
      ranks_.share_model(run);
      ranks_.choose_owners(run);
    }
    note_listeners();
  });
}

// Facts that all ranks must share are compared in two steps: programs first, before the data are read, which takes
// long.
void TrainingLoop::refuse_other_programs(const Run& run) const {
  if (!ranks_.are_several()) return;
  Facts facts = {{"the number of ranks", std::to_string(wiring_.distributed->ranks())},
                 {"the version of LibTorch", TORCH_VERSION},
                 {"the kind of processor", at::get_cpu_capability()},
                 {"the kind of device", c10::DeviceTypeName(run.device.type(), /*lower_case=*/true)}};
  for (const auto* plugin : wiring_.plugins()) {
    if (!plugin->id().starts_with(std::string(Monitor::role) + "/"))
      facts["the version of " + plugin->id()] = plugin->version();
  }
  const auto configuration = Json::parse(this->configuration(Keys::compared), nullptr, /*allow_exceptions=*/false);
  if (configuration.is_object()) {
    for (const auto& [table, options] : configuration.items()) {
      if (table == Monitor::role) continue;
      const auto flat = options.flatten();
      for (const auto& [place, value] : flat.items()) facts[place_of(table, place)] = value.dump();
    }
  }
  ranks_.refuse_differences(facts);
}

void TrainingLoop::refuse_other_data(const Run& run) const {
  if (!ranks_.are_several()) return;
  std::int64_t elements = 0;
  for (const auto& parameter : run.model->parameters()) elements += parameter.numel();
  ranks_.refuse_differences({{"the batches of an epoch", std::to_string(wiring_.task->batches_per_epoch())},
                             {"the data", digest(wiring_.task->save().tensors)},
                             {"the elements of the model", std::to_string(elements)},
                             {"the steps of the run", std::to_string(run.steps)}});
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
  if (accumulation_->gathers()) samples_of_batch(run);  // now, because the first batch is a whole one
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
