// The life of a run around its steps: resuming, rewinding, validations, checkpoints, the end.
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "run/state/snapshot.h"
#include "training_loop.h"

namespace vernier {

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void TrainingLoop::resume(Run& run, State snapshot, bool allow_inexact) {
  ranks_.take_own_state(snapshot);
  ranks_.refuse_differences({{"the step of the checkpoint", std::to_string(snapshot.integer("run/step"))}});
  const auto own = snapshot.part("trainer");
  if (own.has("swaps")) swap_again(wiring_, run, built_, own.text("swaps"));
  called_ = nullptr;
  restore_snapshot(std::move(snapshot), run, wiring_.plugins(), configuration(Keys::compared), allow_inexact);
  if (own.has("asked")) requests_.swap = asked_again(own.text("asked"));
  load(run, own);
  snapshots_.load(own.part("rewind"));
  transaction_.rewire();
  saved_step_ = run.step;
}

// Loads the trainer's own part of a snapshot.
void TrainingLoop::load(Run& run, const State& own) {
  validation_due_ = own.has("validation_due");
  const bool is_longer = own.has("finished") && run.steps > own.integer("finished_of");
  finished_ = own.has("finished") && !is_longer ? own.text("finished") : "";
  if (own.has("samples_of_batch")) samples_of_batch_ = own.integer("samples_of_batch");
  rewound_from_ = own.has("rewound_from") ? own.integer("rewound_from") : -1;
  update_log_.load(own);
  if (own.has("amp/total_steps")) run.amp.load_state_dict(own.part("amp"));
  run.loss = own.has("loss") ? own.tensor("loss").to(run.device) : torch::Tensor();
  best_loss_ = own.has("best_loss") ? own.tensor("best_loss").to(run.device) : torch::Tensor();
  const auto real = [&](const char* name) {
    return own.has(name) ? std::optional(own.real(name)) : std::optional<double>();
  };
  outcome_.validation_loss = real("validation_loss");
  outcome_.best_validation_loss = real("best_validation_loss");
}

// Between two steps. Of the asker's memory only the entries below `also`/ come from the snapshot.
void TrainingLoop::rewind(Run& run) {
  const auto [ignored, asker, back, drop, also, failing, why] = std::exchange(requests_, {});
  const auto given_up = run.step;
  auto snapshot = snapshots_.back_to(run.step - back);
  snapshots_.drop(run.batches_drawn - 1, drop * run.batches);
  is_whole_ = false;
  const auto own = "plugin/" + asker->id() + "/", shared = own + also + "/";
  std::erase_if(snapshot.tensors, [&](const auto& entry) {
    return entry.first.starts_with(own) && (also.empty() || !entry.first.starts_with(shared));
  });
  for (const auto& [name, tensor] : asker->save().tensors) {
    if (also.empty() || !name.starts_with(also + "/")) snapshot.put(own + name, tensor);
  }
  restore_snapshot_quietly(snapshot, run, wiring_.plugins());  // of this run, or let in where it was resumed
  load(run, snapshot.part("trainer"));
  is_whole_ = true;
  saved_step_ = -1;
  rewound_from_ = given_up;
}

Outcome TrainingLoop::train(Run& run) {
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    while (goes_on(run)) advance(run);
    end(run);
  });
  return outcome_;
}

bool TrainingLoop::train_step(Run& run) {
  bool is_trained = false;
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    is_trained = goes_on(run);
    if (is_trained) advance(run);
    if (!is_trained || is_over(run)) end(run);
  });
  return is_trained;
}

// A part of a run. Where it throws, what is whole is saved, and the run is over.
void TrainingLoop::saved_on_failure(Run& run, const std::function<void()>& part) {
  try {
    attributed(run, part);
  } catch (...) {
    const auto failure = std::current_exception();
    is_running_ = false;
    if (transaction_.can_undo()) undo_failed_step(run);
    save_what_is_whole(run);
    try {
      bus_.emit(Event::RunFailed, run);
    } catch (...) {
      log(Level::error, "RunFailed", caught().message);
    }
    try {
      outcome_.error = caught().message;
      complete_outcome(run);
    } catch (...) {
      log(Level::error, "trainer", "what became of the run is not known in full: " + caught().message);
    }
    std::rethrow_exception(failure);
  }
  if (is_running_) return;
  complete_outcome(run);
  outcome_.diverged = divergence(run);
  for (const auto& [plugin, share] : outcome_.slow_plugins) {
    log(Level::warning, plugin, c10::str("took ", std::lround(100 * share), " % of the steps' time"));
  }
}

Outcome TrainingLoop::outcome_now(const Run& run, const std::string& error) {
  complete_outcome(run);
  auto outcome = outcome_;
  outcome.error = error;
  return outcome;
}

void TrainingLoop::complete_outcome(const Run& run) {
  const auto last = update_log_.last();  // on a GPU it is known only now
  outcome_.updates = run.updates + (last && !is_skipped(last->result) ? 1 : 0);
  if (run.loss.defined()) outcome_.loss = run.loss.item<double>();
  if (best_loss_.defined()) outcome_.best_loss = best_loss_.item<double>();
  outcome_.slow_plugins = plugin_times_.slow();
  outcome_.times = clock_.totals(run.device.is_cpu());
}

// Returns the divergence of a run that no error ended, or "". A loss whose update was skipped has changed nothing.
std::string TrainingLoop::divergence(const Run& run) {
  if (const auto weight = not_finite(run); !weight.empty()) return "the weight " + weight + " is not finite";
  const auto last = update_log_.last();
  if (!outcome_.loss || std::isfinite(*outcome_.loss) || is_skipped(last ? last->result : run.last_update)) return "";
  return "the last loss is not finite";
}

// The run ends, and saving it must not fail for the same reason. What the step reported stays.
void TrainingLoop::undo_failed_step(Run& run) {
  const auto notices = run.notices;
  try {
    limit_memory(run.device, 0);
    transaction_.roll_back(Stage::begin, run);
    run.notices = notices;
    requests_ = {};
    finished_.clear();
    is_whole_ = true;
  } catch (...) {
    log(Level::warning, "trainer", "the step cannot be undone, and is not saved: " + caught().message);
  }
}

void TrainingLoop::begin(Run& run) {
  is_running_ = true;
  run.metrics = {};
  bus_.emit(Event::RunBegin, run);
  if (validation_due_) {
    saved_step_ = -1;  // what is saved there lacks the validation
    conclude(run);
  } else {
    swap_what_is_asked(run);
  }
  if (snapshots_.is_due(run.step)) snapshots_.add(run.step, snapshot(run));
  let_look(run);
}

// One step, and what comes after it.
void TrainingLoop::advance(Run& run) {
  using Clock = std::chrono::steady_clock;
  is_whole_ = false;
  const auto start = Clock::now();
  const bool last = run.step + 1 == run.steps;
  run.validates = last || (validate_every_ > 0 && (run.step + 1) % validate_every_ == 0);
  in_step_ = true;
  plugin_times_.begin_step(outcome_.steps);
  step(run);
  clock_.stop();
  plugin_times_.end_step();
  in_step_ = false;
  validation_due_ = run.validates;
  if (validation_due_) synchronize(run.device);  // or the time that the device still takes would be nobody's
  outcome_.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  count_outcome(run);
  run.notices.clear();  // every listener has seen them
  run.step += 1;
  conclude(run);
  let_look(run);
}

void TrainingLoop::end(Run& run) {
  outcome_.signal = is_finished(run) ? 0 : stop_signal();
  outcome_.is_out_of_time = !is_finished(run) && outcome_.signal == 0;
  outcome_.finished = run.step < run.steps ? finished_ : "";
  if (saved_step_ != run.step) save_unless_spoiled(run);
  update_log_.conclude(run);
  bus_.emit(Event::RunEnd, run);
  is_running_ = false;
}

// True if the run ends here, for another reason than the time.
bool TrainingLoop::is_over(const Run& run) const {
  return run.step >= run.steps || !finished_.empty() || stop_signal() != 0;
}

bool TrainingLoop::is_out_of_time() const {
  return time_limit_.count() > 0 && std::chrono::steady_clock::now() - made_at_ >= time_limit_;
}

// True if another step follows. There is always one, because a job that is queued again must get on.
bool TrainingLoop::goes_on(const Run& run) const {
  if (is_over(run)) return false;
  if (outcome_.steps == 0) return true;
  return ranks_.are_several() ? !ranks_.is_out_of_time() : !is_out_of_time();
}

void TrainingLoop::count_outcome(const Run& run) {
  outcome_.steps += 1;
  const auto& whole = ranks_.whole();
  outcome_.samples += std::llround(whole.samples);
  outcome_.tokens += whole.tokens;
  outcome_.micro_batches += run.micro_batches;
}

// Called after a step: a validation, the end of an epoch, a checkpoint.
void TrainingLoop::conclude(Run& run) {
  is_whole_ = true;
  if (requests_.rewinder != nullptr) return rewind(run);
  if (!requests_.swap.empty()) requests_.failing = nullptr;
  const bool is_validated = !validation_due_ || validate(run);
  if (is_validated) {
    validation_due_ = false;
    end_epoch(run);
  }
  fail_if_asked();
  if (!is_validated) return;
  swap_what_is_asked(run);  // before a checkpoint, so that it contains the swap
  if (snapshots_.is_due(run.step)) snapshots_.add(run.step, snapshot(run));
  if (checkpoint_->due(run)) save_unless_spoiled(run);
}

void TrainingLoop::fail_if_asked() {
  if (requests_.failing == nullptr) return;
  called_ = std::exchange(requests_.failing, nullptr);
  finished_.clear();
  throw Error(requests_.why);
}

void TrainingLoop::end_epoch(Run& run) {
  if (run.batches_drawn / task_->batches_per_epoch() == run.epoch) return;
  const bool was_whole = std::exchange(is_whole_, false);
  bus_.emit(Event::EpochEnd, run);
  run.epoch += 1;
  is_whole_ = was_whole;
}

// False where a signal cut it short: it is repeated on resume, so a resumed run is the run that was not stopped.
bool TrainingLoop::validate(Run& run) {
  if (run.is_stopping()) return false;
  run.metrics.clear();  // those of the step: at Validated there are the validation's
  const auto begin = std::chrono::steady_clock::now();
  const auto loss = evaluate(run);
  if (run.is_stopping()) return false;
  if (!loss.defined()) return true;
  const double value = loss.item<double>();  // waits for the device
  const double seconds = seconds_since(begin);
  clock_.add_validation(seconds);
  run.metrics.set("validation_loss", value);
  run.metrics.set_time("validation_time", seconds);
  outcome_.validation_loss = value;
  outcome_.best_validation_loss = std::fmin(value, outcome_.best_validation_loss.value_or(value));
  bus_.emit(Event::Validated, run);
  return true;
}

std::optional<double> TrainingLoop::validation_loss(Run& run) {
  std::optional<double> value;
  attributed(run, [&] {
    run.metrics.clear();
    const auto loss = evaluate(run);
    if (!run.is_stopping() && loss.defined()) value = loss.item<double>();
  });
  return value;
}

// The validation's loss.
torch::Tensor TrainingLoop::evaluate(Run& run) {
  return evaluate(run, [&] { return task_->validate(run); });
}

torch::Tensor TrainingLoop::evaluate(Run& run, const std::function<torch::Tensor()>& body) {
  // Modules that a task keeps in evaluation mode (frozen ones) are to stay so; parents come first in the list.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& module : run.model->modules()) modes.emplace_back(module, module->is_training());
  const auto restore = [&] {
    for (auto& [module, training] : modes) module->train(training);
  };
  run.model->eval();
  torch::Tensor loss;
  try {
    loss = in_callbacks(run, body);
  } catch (...) {
    restore();
    throw;
  }
  restore();
  called_ = wiring_.task.get();  // whose loss it is
  return loss;
}

torch::Tensor TrainingLoop::in_callbacks(Run& run, const std::function<torch::Tensor()>& innermost) {
  const torch::NoGradGuard no_grad;
  const auto checked = [](torch::Tensor loss) { return loss.defined() ? mean_of(std::move(loss), "validate") : loss; };
  std::function<torch::Tensor()> body = [&] { return forward([&] { return checked(innermost()); }); };
  for (const auto& callback : wiring_.callbacks) {
    body = [this, &run, &callback, &checked, inner = std::move(body)] {
      called_ = callback.get();
      return checked(callback->validate(run, [&] {
        auto loss = inner();
        called_ = callback.get();
        return loss;
      }));
    };
  }
  return body();
}

std::optional<double> TrainingLoop::rehearse(Run& run) {
  const auto digest_of = [](const Batch& batch) {
    Tensors tensors;
    for (const auto& tensor : batch.tensors) tensors[std::to_string(tensors.size())] = tensor;
    return digest(tensors);
  };
  std::optional<double> validation_loss;
  const char* function = "validate()";
  attributed(run, [&] {
    try {
      if (const auto loss = evaluate(run); loss.defined()) validation_loss = loss.item<double>();
      Scope scope;
      scope.plugins = {wiring_.task.get()};
      Savepoint before;
      function = "save()";
      before.take(run, scope);
      function = "next()";
      const auto batch = task_->next();
      refuse_other_samples(batch);
      function = "load()";
      before.restore(run);
      function = "next() after load()";
      const auto again = task_->next();
      refuse_other_samples(again);
      if (digest_of(batch) == digest_of(again)) return;
    } catch (...) {
      rethrow_naming(called_->id(), std::string(" in ") + function, Error::Kind::training);
    }
    log(Level::warning, wiring_.task->id(),
        "next() returns another batch after save() and load(), so a resumed run will differ from one that was never "
        "stopped; save() must return all that next() depends on, and load() restore it");
  });
  return validation_loss;
}

State TrainingLoop::snapshot(const Run& run) {
  auto snapshot = take_snapshot(run, wiring_.plugins(), configuration(Keys::all));
  // On a GPU the last step's flag is still on its way; waiting for it here must not make it count a step early.
  State late;
  update_log_.save(late);
  snapshot.put("trainer", late);
  if (const auto swaps = text_of_swaps(wiring_); !swaps.empty()) snapshot.put("trainer/swaps", swaps);
  snapshot.put("trainer/amp", run.amp.state_dict());
  if (run.loss.defined()) snapshot.put("trainer/loss", run.loss);
  if (best_loss_.defined()) snapshot.put("trainer/best_loss", best_loss_);
  if (outcome_.validation_loss) snapshot.put("trainer/validation_loss", *outcome_.validation_loss);
  if (outcome_.best_validation_loss) snapshot.put("trainer/best_validation_loss", *outcome_.best_validation_loss);
  if (!requests_.swap.empty()) snapshot.put("trainer/asked", text_of_asked(requests_.swap));
  if (samples_of_batch_ > 0) snapshot.put("trainer/samples_of_batch", samples_of_batch_);
  if (rewound_from_ >= 0) snapshot.put("trainer/rewound_from", rewound_from_);
  if (validation_due_) snapshot.put("trainer/validation_due", std::int64_t{1});
  if (!finished_.empty()) {
    snapshot.put("trainer/finished", finished_);
    snapshot.put("trainer/finished_of", run.steps);
  }
  return snapshot;
}

void TrainingLoop::save_now(Run& run) {
  if (saved_step_ == run.step) return;
  attributed(run, [&] {
    called_ = nullptr;
    save_finite(run);
  });
}

void TrainingLoop::save_finite(Run& run) {
  if (const auto weight = bad_weight(run); !weight.empty()) {
    throw Error("no checkpoint is made: " + weight + " is not finite");
  }
  save(run);
}

void TrainingLoop::save(Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  auto whole = snapshot(run);
  whole.put("trainer/rewind", snapshots_.save());
  if (ranks_.are_several()) called_ = wiring_.distributed.get();
  ranks_.add_state_of_others(whole);
  if (ranks_.are_sharded()) {
    const auto shard = ranks_.shard_of(whole);
    checkpoint_->write_shard(shard, run);
  } else if (wiring_.distributed->rank() == 0) {
    checkpoint_->write(whole, run);
  }
  saved_step_ = run.step;
  clock_.add_checkpoint(seconds_since(begin));
}

// Returns the first weight that is not finite, or "".
std::string TrainingLoop::not_finite(const Run& run) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : run.parameters) {
    if (!parameter.best().isfinite().all().item<bool>()) return parameter.name;
  }
  return "";
}

// Like not_finite(), agreed between ranks, because only the owner of a weight has its float32 master.
std::string TrainingLoop::bad_weight(const Run& run) {
  const auto weight = not_finite(run);
  if (!ranks_.are_sharded() || !ranks_.any(!weight.empty())) return weight;
  return weight.empty() ? "a weight of another rank" : weight;
}

// The run would be resumed from it, and it would displace older ones.
bool TrainingLoop::is_spoiled(const Run& run) {
  const auto weight = bad_weight(run);
  if (weight.empty()) return false;
  log(Level::warning, "trainer",
      c10::str("no checkpoint is made after step ", run.step, ": ", weight, " is not finite"));
  return true;
}

// Weights that are bad make a bad loss, in the next step at the latest: as long as it is finite nobody looks at them.
// On a GPU the host would wait for the update, and a save holds it up for its copy alone.
void TrainingLoop::save_unless_spoiled(Run& run) {
  const bool is_suspect = !run.results_are_late && run.loss.defined() && !std::isfinite(run.loss.item<double>());
  if (!is_suspect || !is_spoiled(run)) save(run);
}

// Hours of training need not be lost with a step that failed, where what it worked on is whole.
// Several ranks save together or not at all: one that fails does not know where the others are.
void TrainingLoop::save_what_is_whole(Run& run) {
  if (ranks_.are_several()) return;
  const bool is_new = run.step > 0 && run.step != saved_step_;
  if (!is_whole_ || !is_new || called_ == wiring_.checkpoint.get()) return;
  if (is_spoiled(run)) return;
  try {
    save(run);
  } catch (...) {
    log(Level::error, "checkpoint after the failure", caught().message);
  }
}

void TrainingLoop::swap(Run& run, const Table& roles) {
  called_ = nullptr;  // who was called last may be gone then
  try {
    vernier::swap(wiring_, run, built_, roles);
  } catch (...) {
    const auto [text, kind] = caught();
    std::throw_with_nested(Error(c10::str(text, "; nothing was swapped after step ", run.step), kind));
  }
  ranks_.refuse_masters_of_others(run);
  ranks_.share_weights(run, Ranks::Weights::all);  // the precision before has rounded those of others
  snapshots_.clear();
  transaction_.rewire();
  note_listeners();
  saved_step_ = -1;  // what is saved there has the plugins before
}

void TrainingLoop::swap_what_is_asked(Run& run) {
  if (!requests_.swap.empty()) swap(run, std::exchange(requests_.swap, {}));
}

}  // namespace vernier
