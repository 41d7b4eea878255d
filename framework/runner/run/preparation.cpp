#include "preparation.h"

#include <ATen/Version.h>
#include <torch/nn/module.h>
#include <torch/version.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/model_adapter.h>

#include <algorithm>
#include <set>

#include "core/plugin_calls.h"
#include "core/process_state.h"
#include "files/json.h"
#include "run/state/snapshot.h"

namespace vernier {

namespace {

// A tensor that is registered in two modules (a tied weight) is one parameter, under its first name, as in Python.
void name_parameters(TrainerRun& run) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& entry : run.model->named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    run.parameters.push_back({entry.key(), tensor, tensor});
  }
}

// Facts that all ranks must share are compared in two steps: programs before the data are read, which takes long.
void refuse_other_programs(const Parts& parts, const Run& run) {
  if (!parts.ranks.are_several()) return;
  Facts facts = {{"the number of ranks", std::to_string(parts.wiring.distributed->ranks())},
                 {"the version of LibTorch", TORCH_VERSION},
                 {"the kind of processor", at::get_cpu_capability()},
                 {"the kind of device", c10::DeviceTypeName(run.device.type(), /*lower_case=*/true)}};
  for (const auto* plugin : parts.wiring.plugins()) {
    if (!plugin->id().starts_with(std::string(Monitor::role) + "/"))
      facts["the version of " + plugin->id()] = plugin->version();
  }
  const auto configuration = Json::parse(parts.configured(Keys::compared), nullptr, /*allow_exceptions=*/false);
  if (configuration.is_object()) {
    for (const auto& [table, options] : configuration.items()) {
      if (table == Monitor::role) continue;
      const auto flat = options.flatten();
      for (const auto& [place, value] : flat.items()) {
        auto key = table + place;
        std::ranges::replace(key, '/', '.');  // "callback/0/use" becomes "callback.0.use"
        facts[key] = json_text(value);
      }
    }
  }
  parts.ranks.refuse_differences(facts);
}

void refuse_other_data(const Parts& parts, const Run& run) {
  if (!parts.ranks.are_several()) return;
  std::int64_t elements = 0;
  for (const auto& parameter : run.model->parameters()) elements += parameter.numel();
  parts.ranks.refuse_differences({{"the batches of an epoch", std::to_string(parts.wiring.task->batches_per_epoch())},
                                  {"the data", digest(parts.wiring.task->save().tensors)},
                                  {"the elements of the model", std::to_string(elements)},
                                  {"the steps of the run", std::to_string(run.steps)}});
}

// Linux promises more memory than there is, and ends a process that uses it: so this is asked before the first step.
void refuse_too_large(const Parts& parts, const TrainerRun& run) {
  if (!parts.trains || parts.wiring.optimizer->steps_in_backward()) return;
  std::int64_t elements = 0, bytes = 0;
  for (const auto& parameter : run.parameters) {
    elements += parameter.model.numel();
    bytes += static_cast<std::int64_t>(parameter.model.nbytes());
  }
  const auto left = free_memory(run.device);
  if (bytes <= left) return;
  refuse(c10::str("the model has ", elements, " parameters, whose gradients need ", memory_text(bytes), " more, and ",
                  memory_text(left), " are free; make the model smaller"));
}

// Adds a remedy to an error of a plugin that found no memory as it was prepared.
[[noreturn]] void rethrow_without_memory(const Plugin* plugin, const Parts& parts) {
  if (!is_out_of_memory(std::current_exception())) throw;
  const bool is_task = plugin == parts.wiring.task.get();
  std::throw_with_nested(
      Error(caught().message + (is_task ? "; make the model smaller, or take less data" : "; make the model smaller")));
}

void prepare_task(Parts& parts, Step& step, TrainerRun& run, const InitModel& init) {
  if (run.model == nullptr) throw Error("its prepare did not call run.set_model()", Error::Kind::plugin);
  parts.calls.note(nullptr);
  if (init) init(*run.model);
  for (auto* plugin : parts.wiring.plugins()) {
    parts.calls.note(plugin);
    if (auto* adapter = dynamic_cast<ModelAdapter*>(plugin)) adapter->adapt(run);
  }
  parts.calls.note(parts.wiring.task.get());
  run.model->to(run.device);
  run.model->train();
  parts.built = built_model(*run.model);
  name_parameters(run);
  refuse_too_large(parts, run);
  const auto batches = parts.task->batches_per_epoch();
  if (batches < 1) {
    throw Error(c10::str("its batches_per_epoch is ", batches, ", and must be at least 1"), Error::Kind::plugin);
  }
  if (parts.accumulation->gathers()) step.samples_of_batch(run);  // now, because the first batch is a whole one
}

// Counts the updates of an epoch that begins after `steps` updates.
std::int64_t steps_of_epoch(std::int64_t epoch, std::int64_t steps, Parts& parts, std::int64_t samples) {
  std::int64_t count = 0;
  for (auto left = parts.wiring.task->batches_per_epoch(); left > 0; ++count) {
    const auto batches = parts.accumulation->batches_per_update(steps + count, epoch, samples);
    if (batches < 1)
      throw Error(c10::str("its batches_per_update is ", batches, ", and must be at least 1"), Error::Kind::plugin);
    left -= batches;
  }
  return count;
}

std::int64_t steps_of(std::int64_t epochs, Parts& parts, Step& step, TrainerRun& run) {
  const auto batches = parts.task->batches_per_epoch();
  std::int64_t steps = 0;
  constexpr std::int64_t most = 1'000'000'000;  // can be counted one by one in a few seconds
  const bool is_too_many = __builtin_mul_overflow(epochs, batches, &steps);
  if (is_too_many || (parts.accumulation->gathers() && steps > most)) {
    throw Error(c10::str(epochs, " epochs of ", batches, " steps are more than can be counted; lower [run] epochs"),
                Error::Kind::configuration);
  }
  if (!parts.accumulation->gathers()) return steps;
  steps = 0;
  const auto samples = step.samples_of_batch(run);
  parts.plan = {epochs, samples, parts.accumulation->batches_per_update(0, 0, samples)};
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) steps += steps_of_epoch(epoch, steps, parts, samples);
  return steps;
}

// Returns in how many epochs the run's steps are, the last one perhaps not whole.
std::int64_t epochs_of(Parts& parts, Step& step, TrainerRun& run) {
  const auto batches = parts.task->batches_per_epoch();
  if (!parts.accumulation->gathers()) return run.steps / batches + (run.steps % batches != 0 ? 1 : 0);
  constexpr std::int64_t most = 100'000;  // are counted one by one; nobody needs to know of more
  const auto samples = step.samples_of_batch(run);
  std::int64_t epochs = 0;
  for (std::int64_t steps = 0; steps < run.steps && epochs < most; ++epochs) {
    steps += steps_of_epoch(epochs, steps, parts, samples);
  }
  return epochs;
}

void plan_validations(Parts& parts, Step& step, TrainerRun& run) {
  const bool holds_nothing_out = run.measures && run.measures->empty();
  auto& every = parts.validate_every;
  if (every == each_epoch_if_held_out) every = run.measures && !holds_nothing_out ? each_epoch : 0;
  if (holds_nothing_out) return;
  if (every > run.steps && run.steps > 0 && run.measures) {
    log(Level::warning, "run",
        c10::str("validate_every = ", every, ", and the run has ", run.steps, " steps, so it is ",
                 "validated after the last alone; lower [run] validate_every"));
  }
  if (every == each_epoch) {
    run.validations = epochs_of(parts, step, run);
  } else {
    run.validations = every == 0 ? 1 : run.steps / every + (run.steps % every != 0 ? 1 : 0);
  }
}

void note_measures(Parts& parts, TrainerRun& run) {
  run.measures = parts.wiring.task->measures();
  if (run.measures && run.measures->empty()) return;
  for (const auto& callback : parts.wiring.callbacks) {
    const auto more = callback->measures();
    if (run.measures) run.measures->insert(run.measures->end(), more.begin(), more.end());
  }
}

void check_plugins(Parts& parts, Step& step, TrainerRun& run) {
  plan_validations(parts, step, run);
  for (auto* plugin : parts.wiring.plugins()) {
    parts.calls.note(plugin);
    const PluginCall call(plugin->id(), "in check");
    plugin->check(run);
  }
}

}  // namespace

void prepare_plugins(Parts& parts, Step& step, TrainerRun& run, std::int64_t epochs, const InitModel& init) {
  auto& wiring = parts.wiring;
  const auto prepare = [&](Plugin* plugin) {
    parts.calls.note(plugin);
    const PluginCall call(plugin->id(), "in prepare");
    try {
      plugin->prepare(run);
    } catch (...) {
      rethrow_without_memory(plugin, parts);
    }
  };
  prepare(wiring.distributed.get());
  if (run.is_stopping()) return;
  if (parts.ranks.are_several()) run.stop = &parts.ranks.stop();
  refuse_other_programs(parts, run);
  for (auto* plugin : wiring.plugins()) {
    if (run.is_stopping()) return;
    if (plugin == wiring.distributed.get()) continue;
    prepare(plugin);
    if (plugin == wiring.precision.get()) {
      parts.ranks.refuse_masters_of_others(run);
      run.emulated = wiring.precision->emulated();
    }
    if (plugin != wiring.task.get()) continue;
    prepare_task(parts, step, run, init);
    if (epochs > 0) run.steps = steps_of(epochs, parts, step, run);
    refuse_other_data(parts, run);
    parts.calls.note(wiring.distributed.get());
    parts.ranks.share_model(run);
    parts.ranks.choose_owners(run);
  }
  note_measures(parts, run);
  if (parts.trains) check_plugins(parts, step, run);
  step.note_listeners();
}

}  // namespace vernier
