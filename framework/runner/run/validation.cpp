#include "validation.h"

#include <torch/nn/module.h>
#include <vernier/checksum.h>
#include <vernier/copy.h>
#include <vernier/model_adapter.h>

#include <algorithm>
#include <cmath>

#include "base/evaluation_mode.h"
#include "core/step_results.h"
#include "files/json.h"
#include "files/weights.h"
#include "run/state/savepoint.h"

namespace vernier {

namespace {

// A checksum that changes where anybody writes or replaces weights: of places, versions and first numbers.
std::string marks_of(const torch::nn::Module& model) {
  Checksum sum;
  for (const auto& weight : model.parameters()) {
    const auto* place = weight.const_data_ptr();
    const std::int64_t marks[] = {reinterpret_cast<std::int64_t>(place), static_cast<std::int64_t>(weight._version())};
    sum.add(marks, sizeof marks);
    if (place != nullptr && weight.is_cpu() && weight.numel() > 0) sum.add(place, weight.element_size());
  }
  return sum.digits();
}

torch::Tensor checked(const Run& run, torch::Tensor loss) {
  if (loss.defined()) refuse_wrong_loss(loss, run.device, LossFrom::validation);
  return loss;
}

// Runs `body`, which emits Validated. If a listener throws, those before it forget the validation, which is done again
// on resume. is_half_counted becomes true where they cannot.
void with_undo(const Wiring& wiring, TrainerRun& run, bool& is_half_counted, const std::function<void()>& body) {
  Scope scope;
  scope.copy_up_to = 1 << 20;  // larger tensors are replaced, not written, or restore() refuses
  scope.weights = run.model->parameters();
  for (auto* plugin : wiring.plugins()) {
    if (wiring.bus.listens(*plugin, Event::Validated)) scope.plugins.push_back(plugin);
  }
  Savepoint before;
  try {
    before.take(run, scope);
  } catch (...) {
    before.clear();  // a plugin that cannot be saved now does not end the validation
  }
  is_half_counted = false;
  try {
    body();
  } catch (...) {
    is_half_counted = true;
    try {
      if (before.is_taken()) {
        before.restore(run);
        is_half_counted = false;
      }
    } catch (...) {
      log(Level::warning, "trainer", "the validation cannot be undone, and the step is not saved: " + caught().message);
    }
    throw;
  }
}

bool is_in(const std::vector<std::string>& ids, const Plugin& plugin) {
  return std::ranges::find(ids, plugin.id()) != ids.end();
}

}  // namespace

Better better_of(const Run& run, const std::string& metric) {
  const auto* info = run.metric_info(metric);
  return info == nullptr ? Better::unknown : info->better;
}

bool Validation::validate(TrainerRun& run) {
  is_due_ = true;
  if (run.is_stopping()) return false;
  roles_.ranks.agree(run, "a validation", Ranks::Compared::all);
  HostApi::clear(run.metrics);  // removes the step's metrics, because Validated has the validation's alone
  const auto begin = std::chrono::steady_clock::now();
  const auto loss = evaluate(run);
  if (run.is_stopping()) return false;
  if (loss.defined()) {
    const double value = loss.item<double>();  // waits for the device
    const double seconds = seconds_since(begin);
    clock_.add_validation(seconds);
    run.metrics.set("validation_loss", value);
    run.metrics.set_time("validation_time", seconds);
    with_undo(roles_.wiring, run, is_half_counted_, [&] {
      HostApi::emit(roles_.wiring.bus, Event::Validated, run);
      note_outcome(run);
    });
  }
  is_due_ = false;
  return true;
}

std::optional<double> Validation::loss_now(TrainerRun& run) {
  const auto before = std::exchange(outcome_.validation_loss, std::nullopt);
  validate(run);
  const auto loss = outcome_.validation_loss;
  if (!loss) outcome_.validation_loss = before;
  return loss;
}

// After the listeners: callback/early_stopping puts other weights into the model, and their metrics into run.metrics.
void Validation::note_outcome(const Run& run) {
  const auto note = [](double value, Better better, std::optional<double>& last, std::optional<double>& best) {
    last = value;
    if (better == Better::unknown || !std::isfinite(value)) return;
    if (!best || (better == Better::higher ? value > *best : value < *best)) best = value;
  };
  for (const auto* metric : run.metrics.set_now()) {
    if (metric->is_time) continue;
    if (metric->name == "validation_loss") {
      note(metric->value(), Better::lower, outcome_.validation_loss, outcome_.best_validation_loss);
    } else {
      auto& [last, best] = outcome_.measured[metric->name];
      note(metric->value(), better_of(run, metric->name), last, best);
    }
  }
}

torch::Tensor Validation::evaluate(TrainerRun& run, const std::function<torch::Tensor()>& body) {
  const EvaluationMode mode(*run.model, run.device);
  averages_.clear();
  std::optional<AskedWeights> left_out;
  if (leaves_averages_out_) left_out.emplace();
  auto loss = in_plugins(run, [&] {
    const StepNumbers by_task(run, roles_.wiring.task.get());
    return roles_.precision.forward([&] { return checked(run, body()); });
  });
  roles_.calls.note(roles_.wiring.task.get());  // the loss is the task's
  return loss;
}

void Validation::use(TrainerRun& run, const std::function<void()>& body) {
  std::int64_t models = 0, model = 0;
  const auto metrics = run.metrics;
  evaluate(run, [&] {
    ++models;
    return torch::Tensor();
  });
  run.metrics = metrics;
  evaluate(run, [&] {
    if (++model == models) body();
    return torch::Tensor();
  });
  if (model >= models && models > 0) return;
  throw Error(c10::str("the model was not used: evaluate() of a plugin called body ", models, " times, and then ",
                       model, " times; it must call body, as often each time"));
}

Validation::Average Validation::average(TrainerRun& run) {
  AskedWeights asked;
  const EvaluationMode mode(*run.model, run.device);
  auto before = std::exchange(averages_, {});
  const auto restore = c10::make_scope_exit([&] { averages_ = std::move(before); });
  asked_ = {};
  in_plugins(run, [&] { return torch::zeros({}, run.device); });
  const auto is_own = [](const auto& pair) { return pair.first.const_data_ptr() == pair.second.const_data_ptr(); };
  if (std::ranges::all_of(asked_.weights, is_own)) asked_ = {};
  return averages_.empty() ? std::exchange(asked_, {}) : Average{averages_.back(), {}};
}

std::string Validation::record(TrainerRun& run, const State& snapshot) {
  Json record = Json::object();
  for (const auto& callback : roles_.wiring.callbacks) {
    if (dynamic_cast<const ModelAdapter*>(callback.get()) != nullptr) record["adapter"] = callback->id();
  }
  Average average;
  const auto metrics = run.metrics;
  try {
    average = this->average(run);
  } catch (...) {  // a plugin that evaluates nothing but losses
    log(Level::warning, "checkpoint", "it does not say whose weights an evaluation has: " + caught().message);
  }
  run.metrics = metrics;
  if (!average.by.empty()) record["average"] = average.by;
  std::map<const void*, std::string> entries;
  const auto prefix = "plugin/" + average.by + "/";
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (name.starts_with(prefix)) entries[tensor.const_data_ptr()] = name;
  }
  for (const auto& [name, tensor] : model_tensors(*run.model)) {
    for (const auto& [trained, weight] : average.weights) {
      const auto entry = entries.find(weight.const_data_ptr());
      if (tensor.is_same(trained) && entry != entries.end()) record["weights"][name] = entry->second;
    }
  }
  return record.empty() ? "" : json_text(record);
}

torch::Tensor Validation::in_plugins(TrainerRun& run, std::function<torch::Tensor()> body) {
  const torch::NoGradGuard no_grad;
  auto plugins = roles_.wiring.plugins();  // callbacks first: the first call is the innermost
  std::ranges::stable_partition(plugins,
                                [](const auto* each) { return dynamic_cast<const Callback*>(each) != nullptr; });
  for (auto* plugin : plugins) {
    body = [this, &run, plugin, inner = std::move(body)] {
      roles_.calls.note(plugin);
      const StepNumbers before(run, plugin);
      const auto marks = marks_of(*run.model);
      auto result = checked(run, plugin->evaluate(run, [&] {
        auto* asked = AskedWeights::current();
        if (asked != nullptr && !asked->weights.empty()) asked_ = {plugin->id(), std::exchange(asked->weights, {})};
        if (!is_in(averages_, *plugin) && marks_of(*run.model) != marks) averages_.push_back(plugin->id());
        auto loss = inner();
        roles_.calls.note(plugin);
        return loss;
      }));
      before.refuse_wrong(Event::Validated, run);
      return result;
    };
  }
  return body();
}

// Any callback may have an average from a later step on. An optimizer counts where it has one.
State TrainerAverages::keep(const Plugin& requester) {
  State kept;
  for (const auto* plugin : roles_.wiring.plugins()) {
    const bool may_have = is_in(validation_.averages(), *plugin) || dynamic_cast<const Callback*>(plugin) != nullptr;
    if (may_have && plugin != &requester) kept.put(plugin->id(), plugin->save());
  }
  std::erase_if(kept.tensors, [](const auto& entry) { return entry.first.find("/averages/") != std::string::npos; });
  kept.put("compensation", roles_.wiring.precision->save().part("compensation"));  // the rest of 16-bit weights
  return clone_of(std::move(kept));
}

void TrainerAverages::put_back(const Run& run, const State& kept, std::int64_t step) {
  validation_.note_restored(run, step);
  const auto rests = kept.part("compensation");
  for (auto& [name, rest] : roles_.wiring.precision->save().part("compensation").tensors) {
    rests.has(name) ? rest.copy_(rests.tensor(name)) : rest.zero_();
  }
  for (auto* plugin : roles_.wiring.plugins()) {
    const auto state = kept.part(plugin->id());
    const bool is_kept = !state.tensors.empty() || dynamic_cast<const Callback*>(plugin) != nullptr;
    if (is_kept && is_in(validation_.averages(), *plugin)) plugin->load(state);
  }
}

void Validation::save(State& state) const {
  if (outcome_.validation_loss) state.put("validation_loss", *outcome_.validation_loss);
  if (outcome_.best_validation_loss) state.put("best_validation_loss", *outcome_.best_validation_loss);
  for (const auto& [name, measured] : outcome_.measured) {
    if (measured.last) state.put("measured/last/" + name, *measured.last);
    if (measured.best) state.put("measured/best/" + name, *measured.best);
  }
  if (is_due_) state.put("validation_due", std::int64_t{1});
  if (restored_.first >= 0) state.put("restored/at", restored_.first), state.put("restored/from", restored_.second);
}

void Validation::load(const State& state) {
  const auto real = [](const State& from, const std::string& name) {
    return from.has(name) ? std::optional(from.real(name)) : std::nullopt;
  };
  outcome_ = {real(state, "validation_loss"), real(state, "best_validation_loss"), {}};
  const auto last = state.part("measured/last"), best = state.part("measured/best");
  for (const auto& [name, value] : last.tensors) outcome_.measured[name].last = last.real(name);
  for (const auto& [name, value] : best.tensors) outcome_.measured[name].best = best.real(name);
  is_due_ = state.has("validation_due");
  restored_ = {-1, -1};
  if (state.has("restored/at")) restored_ = {state.integer("restored/at"), state.integer("restored/from")};
}

}  // namespace vernier
