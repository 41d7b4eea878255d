#include "preparation.h"

#include <ATen/Version.h>
#include <torch/version.h>
#include <vernier/draft/model_parts.h>
#include <vernier/memory.h>
#include <vernier/model_adapter.h>

#include "core/process_state.h"
#include "files/json.h"
#include "files/weights.h"
#include "wiring/swap.h"

namespace vernier {

namespace {

// A tensor that is registered in two modules (a tied weight) is one parameter, under its first name, as in Python.
void name_parameters(TrainerRun& run) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& entry : run.model->named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto dtype = tensor.scalar_type();
    if (at::isComplexType(dtype) || at::isFloat8Type(dtype)) {
      refuse(c10::str("the parameter '", entry.key(), "' is ", dtype,
                      ", which no optimizer trains here; make it real, ",
                      "complex numbers as [..., 2] with view_as_complex() in forward(), or freeze it"));
    }
    run.parameters.push_back({entry.key(), tensor, tensor});
  }
}

// Facts that all ranks must share are compared in two steps: programs before the data are read, which takes long.
void refuse_other_programs(Roles& roles, const Saving& saving, const Run& run) {
  if (!roles.ranks.are_several()) return;
  Facts facts = {{"the number of ranks", std::to_string(roles.wiring.distributed->ranks())},
                 {"the version of LibTorch", TORCH_VERSION},
                 {"the kind of processor", at::get_cpu_capability()},
                 {"the kind of device", c10::DeviceTypeName(run.device.type(), /*lower_case=*/true)}};
  for (const auto* plugin : roles.wiring.plugins()) {
    if (!plugin->id().starts_with(std::string(Monitor::role) + "/"))
      facts["the version of " + plugin->id()] = plugin->version();
  }
  const auto configuration = Json::parse(saving.configured(Keys::compared), nullptr, /*allow_exceptions=*/false);
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
  roles.ranks.refuse_differences(facts);
}

void refuse_other_data(Roles& roles, const Run& run) {
  if (!roles.ranks.are_several()) return;
  const auto* in_parts = draft::ModelParts::current();
  auto data = roles.wiring.task->save().tensors;
  if (in_parts != nullptr) std::erase_if(data, [](const auto& one) { return one.first.starts_with("learned/given/"); });
  Facts facts = {{"the batches of an epoch", std::to_string(roles.wiring.task->batches_per_epoch())},
                 {"the data", digest(data)},
                 {"the steps of the run", std::to_string(run.steps)}};
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : model_tensors(*run.model)) {
    elements += tensor.requires_grad() ? tensor.numel() : 0;
    const bool is_same = in_parts != nullptr && !draft::ModelParts::is_part(name);
    if (is_same) facts[name + ", which the model's files do not name as sharded"] = digest({{name, tensor}});
  }
  if (in_parts == nullptr) {
    facts["the elements of the model"] = std::to_string(elements);
  } else {  // sums over the ranks go by the place of a parameter
    auto& order = facts["the parameters and buffers in their order"];
    for (const auto& [name, tensor] : model_tensors(*run.model)) {
      const auto* kind = draft::ModelParts::is_part(name) ? " in parts" : tensor.requires_grad() ? " trained" : "";
      order += c10::str(name, ' ', tensor.scalar_type(), kind, ", ");
    }
  }
  roles.ranks.refuse_differences(facts);
}

// Linux promises more memory than there is, and ends a process that uses it: so this is asked before the first step.
void refuse_too_large(const Roles& roles, const TrainerRun& run) {
  if (roles.wiring.optimizer->steps_in_backward()) return;
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
[[noreturn]] void rethrow_without_memory(const Plugin* plugin, const Roles& roles) {
  if (!is_out_of_memory(std::current_exception())) throw;
  const bool is_task = plugin == roles.wiring.task.get();
  std::throw_with_nested(
      Error(caught().message + (is_task ? "; make the model smaller, or take less data" : "; make the model smaller")));
}

void prepare_task(Roles& roles, Step& step, TrainerRun& run, const InitModel& init, bool trains) {
  if (run.model == nullptr) throw Error("its prepare did not call run.set_model()", Error::Kind::plugin);
  roles.calls.note(nullptr);
  if (init) init(*run.model);
  for (auto* plugin : roles.wiring.plugins()) {
    roles.calls.note(plugin);
    if (auto* adapter = dynamic_cast<ModelAdapter*>(plugin)) adapter->adapt(run);
  }
  roles.calls.note(roles.wiring.task.get());
  run.model->to(run.device);
  run.model->train();
  roles.wiring.built = built_model(*run.model);
  name_parameters(run);
  if (trains) refuse_too_large(roles, run);
  (void)roles.task.batches_per_epoch();
  if (roles.accumulation->gathers()) step.batches().samples(run);  // now, because the first batch is a whole one
}

void note_metrics(Roles& roles, TrainerRun& run) {
  HostApi::declare(run.metric_infos, trainer_metrics(), "trainer");
  for (const auto* plugin : roles.wiring.plugins()) {
    roles.calls.note(plugin);
    HostApi::declare(run.metric_infos, plugin->metrics(), plugin->id());
  }
  const auto& task = roles.wiring.task;
  roles.calls.note(task.get());
  run.measures = task->measures();
  if (run.measures) HostApi::declare(run.metric_infos, *run.measures, task->id());
  if (run.measures && run.measures->empty()) return;
  for (const auto& callback : roles.wiring.callbacks) {
    roles.calls.note(callback.get());
    const auto more = callback->measures();
    HostApi::declare(run.metric_infos, more, callback->id());
    if (run.measures) run.measures->insert(run.measures->end(), more.begin(), more.end());
  }
}

// A rate of 0 is taken, because one of several groups may have it.
void warn_of_no_rate(const Wiring& wiring) {
  for (const auto& option : HostApi::declared(wiring.origin_of(*wiring.optimizer).options)) {
    const auto* rate = std::get_if<double>(&option.value.data);
    if (option.key != "learning_rate" || rate == nullptr || *rate != 0) continue;
    log(Level::warning, wiring.optimizer->id(), "learning_rate = 0: a step changes no weight; set it above 0");
  }
}

void check_plugins(Roles& roles, Step& step, TrainerRun& run) {
  roles.calls.note(nullptr);
  warn_of_no_rate(roles.wiring);
  step.plan().count_validations(run);
  for (auto* plugin : roles.wiring.plugins()) {
    roles.calls.note(plugin);
    const PluginCall call(plugin->id(), "in check");
    plugin->check(run);
  }
}

}  // namespace

void prepare_plugins(Roles& roles, Step& step, const Saving& saving, TrainerRun& run, std::int64_t epochs,
                     const InitModel& init, bool trains) {
  auto& wiring = roles.wiring;
  const auto prepare = [&](Plugin* plugin) {
    roles.calls.note(plugin);
    const PluginCall call(plugin->id(), "in prepare");
    try {
      HostApi::prepare(*plugin, run);
    } catch (...) {
      rethrow_without_memory(plugin, roles);
    }
  };
  prepare(wiring.distributed.get());
  if (run.is_stopping()) return;
  if (roles.ranks.are_several()) run.stop = &roles.ranks.stop();
  refuse_other_programs(roles, saving, run);
  for (auto* plugin : wiring.plugins()) {
    if (run.is_stopping()) return;
    if (plugin == wiring.distributed.get()) continue;
    prepare(plugin);
    if (plugin == wiring.precision.get()) {
      roles.owners.refuse_masters_of_others(run);
      run.emulated = wiring.precision->emulated();
    }
    if (plugin != wiring.task.get()) continue;
    prepare_task(roles, step, run, init, trains);
    if (epochs > 0) step.plan().count_steps(run, epochs);
    refuse_other_data(roles, run);
    roles.calls.note(wiring.distributed.get());
    roles.ranks.share_model(run);
    roles.owners.choose(run);
  }
  note_metrics(roles, run);
  if (trains) check_plugins(roles, step, run);
  step.note_plugins(run);
}

}  // namespace vernier
