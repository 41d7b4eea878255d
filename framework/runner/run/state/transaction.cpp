#include "transaction.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

namespace vernier {

namespace {

std::vector<std::int64_t> versions_of_gradients(const Run& run) {
  std::vector<std::int64_t> all;
  for (const auto& parameter : run.parameters) {
    all.push_back(parameter.master.grad().defined() ? parameter.master.grad()._version() : -1);
  }
  return all;
}

}  // namespace

// Roles and listeners before the update. The memory of the optimizer changes before it only if it listens.
std::vector<Plugin*> Transaction::plugins_at(Stage stage) const {
  std::vector<Event> events = {Event::BatchReady, Event::LossReady, Event::GradientsReady};
  if (stage == Stage::begin) events.insert(events.end(), {Event::EpochEnd, Event::StepBegin});
  std::vector<Plugin*> all = {wiring_.task.get(), wiring_.precision.get(), wiring_.scaler.get(),
                              wiring_.accumulation.get(), wiring_.distributed.get()};
  const auto add_listener = [&](Plugin* plugin) {
    const auto listens = [&](Event event) { return wiring_.bus.listens(*plugin, event); };
    if (std::ranges::any_of(events, listens)) all.push_back(plugin);
  };
  if (stage == Stage::begin) add_listener(wiring_.optimizer.get());
  for (const auto& callback : wiring_.callbacks) add_listener(callback.get());
  if (stage == Stage::batch) std::erase_if(all, [&](auto* plugin) { return requesters_.contains(plugin); });
  return all;
}

void Transaction::wire(const Run& run) {
  for (const auto stage : {Stage::begin, Stage::batch}) {
    auto& scope = scopes_[index(stage)] = {};
    scope.plugins = plugins_at(stage);
    scope.buffers = run.model->buffers();
  }
  auto& begin = scopes_[index(Stage::begin)];
  begin.copy_up_to = 1 << 20;               // larger tensors do not change before the update
  begin.weights = run.model->parameters();  // frozen ones too
  for (const auto& [name, model, master, frozen, owned] : run.parameters) {
    if (!master.is_same(model) && owned) begin.weights.push_back(master);
  }
  parameters_ = run.parameters;
  is_wired_ = true;
}

void Transaction::take_no_copies() {
  undoes_failed_steps_ = false;
  requesters_.clear();
}

void Transaction::rewire_plugins() {
  const auto plugins = wiring_.plugins();
  std::erase_if(requesters_, [&](auto* requester) { return std::ranges::find(plugins, requester) == plugins.end(); });
  rewire();
}

void Transaction::take(Stage stage, const TrainerRun& run) {
  if (!is_wired_) wire(run);
  point(stage).take(run, scopes_[index(stage)]);
}

void Transaction::mark(Stage stage, TrainerRun& run) {
  if (stage == Stage::batch) return is_rerun_wanted() ? take(stage, run) : void();
  phase_ = Phase::begun;
  point(stage).clear();
  if (!undoes_failed_steps_ || wiring_.optimizer->steps_in_backward()) return;
  try {
    take(stage, run);
  } catch (...) {
    point(stage) = {};  // its memory too
    if (std::exchange(has_warned_, true)) return;
    log(Level::warning, "trainer",
        c10::str("step ", run.step + 1, ": ", caught().message,
                 " (a step that fails cannot be undone, and is not saved)"));
  }
}

void Transaction::gradients_computed(const Run& run) {
  phase_ = Phase::computed;
  if (is_rerun_wanted()) versions_ = versions_of_gradients(run);
}

void Transaction::commit() {
  phase_ = Phase::between;
  for (auto& point : points_) point.clear();
}

void Transaction::want_rerun(const Plugin& requester) {
  if (wiring_.optimizer->steps_in_backward()) {
    refuse(requester.id() + " has part of a step run again, and with " + wiring_.optimizer->id() +
               "'s in_backward the weights have changed by then: leave one of them out",
           requester.id());
  }
  if (phase_ != Phase::between) {
    throw Error(requester.id() + " calls want_rerun() within a step", Error::Kind::training, requester.id());
  }
  requesters_.insert(&requester);
  rewire();
}

void Transaction::roll_back(Stage stage, TrainerRun& run) {
  point(stage).restore(run);
  run.parameters = parameters_;
  if (stage == Stage::batch) take(stage, run);  // for the next time
}

torch::Tensor Transaction::put_back_after(const TrainerRun& run, const std::function<torch::Tensor()>& body) {
  Scope scope;
  scope.buffers = run.model->buffers();
  for (const auto& [name, model, master, frozen, owned] : run.parameters) {
    scope.buffers.push_back(model);
    if (!master.is_same(model) && owned) scope.buffers.push_back(master);
  }
  Savepoint now;
  now.take(run, scope);
  auto& begin = point(Stage::begin);
  const bool was_unwritten = begin.is_unwritten();
  const auto put_back = c10::make_scope_exit([&] {
    now.restore_copies();
    if (was_unwritten) begin.accept(scope.buffers);
  });
  return body();
}

bool Transaction::rerun(TrainerRun& run, const std::function<void()>& body) {
  if (!point(Stage::batch).is_taken() || phase_ != Phase::computed) {
    throw Error("gradients are computed again in GradientsReady, by a plugin that called want_rerun() in prepare");
  }
  const bool is_untouched = versions_of_gradients(run) == versions_;
  Scope scope = scopes_[index(Stage::batch)];
  scope.keeps_gradients = true;
  Savepoint now;
  now.take(run, scope);
  try {
    roll_back(Stage::batch, run);
    body();
  } catch (...) {
    now.restore(run);
    throw;
  }
  now.restore(run);
  return is_untouched;
}

}  // namespace vernier
