#include "transaction.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/error.h>

#include <algorithm>
#include <iterator>

namespace vernier {

// Roles that are called before the update, and whoever listens before it. Monitors and checkpoints only look. The
// optimizer's memory changes before the update only if it listens.
std::vector<Plugin*> Transaction::plugins_at(Stage stage) const {
  std::vector<Event> events = {Event::BatchReady, Event::LossReady, Event::GradientsReady};
  if (stage == Stage::begin) events.insert(events.end(), {Event::EpochEnd, Event::StepBegin});
  if (stage == Stage::gradients) events.push_back(Event::UpdateDone);
  std::vector<Plugin*> all = {wiring_.task.get(), wiring_.precision.get(), wiring_.scaler.get(),
                              wiring_.accumulation.get(), wiring_.distributed.get()};
  const auto add_if = [&](Plugin* plugin, bool always) {
    const auto listens = [&](Event event) { return wiring_.bus.listens(*plugin, event); };
    if (always || std::ranges::any_of(events, listens)) all.push_back(plugin);
  };
  if (stage != Stage::batch) add_if(wiring_.optimizer.get(), stage == Stage::gradients);
  for (const auto& callback : wiring_.callbacks) add_if(callback.get(), false);
  std::erase_if(all, [&](auto* plugin) { return askers_[index(stage)].contains(plugin); });
  return all;
}

void Transaction::wire(const Run& run) {
  for (const auto stage : {Stage::begin, Stage::batch, Stage::gradients}) {
    auto& scope = scopes_[index(stage)] = {};
    scope.plugins = plugins_at(stage);
    scope.buffers = run.model->buffers();
  }
  auto &begin = scopes_[index(Stage::begin)], &gradients = scopes_[index(Stage::gradients)];
  begin.copy_up_to = 1 << 20;               // larger tensors do not change before the update
  begin.weights = run.model->parameters();  // frozen ones too
  gradients.copies_weights = true;
  gradients.gradients = Scope::Gradients::copied;
  for (const auto& [name, model, master, frozen, owned] : run.parameters) {
    gradients.weights.push_back(model);
    if (master.is_same(model) || !owned) continue;
    begin.weights.push_back(master);
    gradients.weights.push_back(master);
  }
  parameters_ = run.parameters;
  is_wired_ = true;
}

void Transaction::take_no_copies() {
  undoes_failed_steps_ = false;
  for (auto& askers : askers_) askers.clear();
}

void Transaction::take(Stage stage, const Run& run) {
  if (!is_wired_) wire(run);
  if (stage == Stage::gradients) scopes_[index(stage)].plugins = plugins_at(stage);  // askers are of this step
  point(stage).take(run, scopes_[index(stage)]);
}

void Transaction::take_if_it_fits(Stage stage, const Run& run, const char* or_else) {
  try {
    take(stage, run);
  } catch (...) {
    point(stage) = {};  // its memory too
    auto& has_warned = has_warned_[index(stage)];
    if (!has_warned) log(Level::warning, "trainer", c10::str("step ", run.step + 1, ": ", caught().message, or_else));
    has_warned = true;
  }
}

void Transaction::mark(Stage stage, Run& run) {
  if (stage == Stage::begin) {
    phase_ = Phase::begun;
    broken_ = nullptr;
    point(stage).clear();
    if (!undoes_failed_steps_ || wiring_.optimizer->steps_in_backward()) return;
    take_if_it_fits(stage, run, " (a step that fails cannot be undone, and is not saved)");
  } else if (stage == Stage::batch) {
    if (is_wanted(stage)) take(stage, run);
  } else {
    phase_ = Phase::updating;
    point(Stage::begin).clear();  // weights change from here on
    if (!is_wanted(stage)) return;
    were_untouched_ = versions_of_gradients(run) == versions_;
    take_if_it_fits(stage, run, " (its update cannot be rolled back)");
  }
}

void Transaction::gradients_computed(const Run& run) {
  phase_ = Phase::computed;
  if (is_wanted(Stage::batch)) versions_ = versions_of_gradients(run);
}

bool Transaction::rolled_back() {
  if (broken_) std::rethrow_exception(broken_);
  if (phase_ != Phase::rolled_back) return false;
  phase_ = Phase::between;  // once a step
  return true;
}

void Transaction::commit() {
  phase_ = Phase::between;
  point(Stage::batch).clear();
  point(Stage::gradients).clear();
  askers_[index(Stage::gradients)].clear();
  skip_before_.reset();
}

void Transaction::want(Stage stage, const Plugin& asker) {
  if (wiring_.optimizer->steps_in_backward()) {
    throw Error(asker.id() + " has part of a step run again, and with " + wiring_.optimizer->id() +
                    "'s in_backward the weights have changed by then: leave one of them out",
                Error::Kind::configuration);
  }
  if (stage == Stage::begin) throw Error(asker.id() + " wants Stage::begin, which is the trainer's own");
  if (stage == Stage::batch && phase_ != Phase::between) throw Error(asker.id() + " wants Stage::batch within a step");
  if (stage == Stage::gradients && phase_ != Phase::computed) {
    throw Error(asker.id() + " wants Stage::gradients outside of GradientsReady");
  }
  askers_[index(stage)].insert(&asker);
  if (stage == Stage::batch) rewire();
}

bool Transaction::roll_back(Stage stage, Run& run) {
  if (stage != Stage::gradients) {
    point(stage).restore(run);
    run.parameters = parameters_;
    if (stage == Stage::batch) take(stage, run);  // for the next time
    return true;
  }
  if (phase_ != Phase::updating) throw Error("an update is rolled back in UpdateDone, and once a step");
  if (!is_wanted(stage)) throw Error("no plugin wanted Stage::gradients in this step's GradientsReady");
  if (!point(stage).is_taken()) return false;
  phase_ = Phase::rolled_back;
  restore_for_good(run);
  skip_before_ = run.skip_update;
  run.skip_update = torch::ones({}, torch::dtype(torch::kFloat32).device(run.device));
  return true;
}

torch::Tensor Transaction::put_back_after(const Run& run, const std::function<torch::Tensor()>& body) {
  std::vector<torch::Tensor> tensors = run.model->buffers(), copies;
  for (const auto& [name, model, master, frozen, owned] : run.parameters) {
    tensors.push_back(model);
    if (!master.is_same(model) && owned) tensors.push_back(master);
  }
  std::ranges::transform(tensors, std::back_inserter(copies),
                         [](const torch::Tensor& tensor) { return tensor.detach().clone(); });
  auto& begin = point(Stage::begin);
  const bool was_unwritten = begin.is_unwritten();
  const auto put_back = c10::make_scope_exit([&] {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(copies[i]);
    if (was_unwritten) begin.accept(tensors);
  });
  return body();
}

// A state that cannot be restored ends the run, whatever the asker makes of it.
void Transaction::restore_for_good(Run& run) try {
  point(Stage::gradients).restore(run);
  if (were_untouched_) versions_ = versions_of_gradients(run);
} catch (...) {
  broken_ = std::current_exception();
  throw;
}

bool Transaction::rerun(Stage from, Run& run, const std::function<void()>& body) {
  if (from == Stage::gradients) return rerun_update(run, body);
  if (from == Stage::begin || !point(from).is_taken() || (phase_ != Phase::computed && phase_ != Phase::rolled_back)) {
    throw Error("gradients are computed again in GradientsReady, by a plugin that wanted Stage::batch in prepare");
  }
  const bool is_untouched = versions_of_gradients(run) == versions_;
  Scope scope = scopes_[index(from)];
  scope.gradients = Scope::Gradients::kept;
  Savepoint now;
  now.take(run, scope);
  try {
    roll_back(from, run);
    body();
  } catch (...) {
    now.restore(run);
    throw;
  }
  now.restore(run);
  return is_untouched;
}

bool Transaction::rerun_update(Run& run, const std::function<void()>& body) {
  if (phase_ != Phase::rolled_back) throw Error("an update is run again after roll_back(Stage::gradients)");
  take(Stage::gradients, run);  // plugins may have kept the copies
  run.skip_update = skip_before_;
  std::exception_ptr trouble;
  try {
    body();
  } catch (...) {
    trouble = std::current_exception();
  }
  restore_for_good(run);
  if (trouble) std::rethrow_exception(trouble);
  return were_untouched_;
}

std::vector<std::int64_t> Transaction::versions_of_gradients(const Run& run) {
  std::vector<std::int64_t> all(run.parameters.size());
  std::ranges::transform(run.parameters, all.begin(), [](const Parameter& parameter) {
    return parameter.master.grad().defined() ? parameter.master.grad()._version() : -1;
  });
  return all;
}

}  // namespace vernier
