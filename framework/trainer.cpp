#include "trainer.h"

#include <torch/nn/module.h>
#include <vernier/error.h>

#include <chrono>
#include <set>
#include <utility>

#include "snapshot.h"
#include "summary.h"

namespace vernier {

namespace {

// A strategy that loses samples would train on something else than the user's batch, in silence.
void refuse_half_a_batch(const std::vector<Batch>& pieces, const Batch& batch) {
  std::int64_t samples = 0;
  for (const auto& piece : pieces) samples += piece.samples;
  if (samples == batch.samples && !pieces.empty()) return;
  throw Error(c10::str("it split a batch of ", batch.samples, " samples into ", samples));
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i > 0 ? "," : "") + names[i];
  return names.size() > most ? text + c10::str(" and ", names.size() - most, " more") : text;
}

}  // namespace

Trainer::Trainer(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop)
    : wiring_(wiring),
      bus_(wiring.bus),
      task_(wiring.task, called_),
      precision_(wiring.precision, called_),
      scaler_(wiring.scaler, called_),
      accumulation_(wiring.accumulation, called_),
      optimizer_(wiring.optimizer, called_),
      checkpoint_(wiring.checkpoint, called_),
      distributed_(wiring.distributed, called_),
      validate_every_(validate_every),
      stop_(stop) {}

// One update: roles are called, listeners are told (the comment over Event).
void Trainer::step(Run& run) {
  run.metrics.clear();
  run.learning_rate_factor = 1.0;
  bus_.emit(Event::StepBegin, run);
  run.batch = next_batch(run);
  if (repeat_.is_asked()) repeat_.keep(run, wiring_);
  compute_gradients(run);
  if (repeat_.is_asked()) repeat_.mark(run);
  look_for_overflow(run);
  bus_.emit(Event::GradientsReady, run);
  if (!optimizer_->divides_gradients()) run.gradients();
  optimizer_->step(run);
  precision_->commit(run);
  scaler_->update(run);
  settle(run);
  bus_.emit(Event::StepEnd, run);
}

void Trainer::rehearse(Run& run) {
  in_step_ = true;
  attributed(run, [&] {
    bus_.emit(Event::StepBegin, run);
    run.batch = next_batch(run);
    compute_gradients(run);
    run.gradients();
  });
  in_step_ = false;
}

// What plugins know of a step without saving it they learn at StepBegin; what they change there is the snapshot's.
// The task's own memory is its place in the data, which may be gone: the batch is there.
void Trainer::replay(Run& run, const State& snapshot, const Batch& batch, const std::function<void()>& begin) {
  auto plugins = wiring_.plugins();
  try {
    wiring_.task->load(snapshot.part("plugin/" + wiring_.task->id()));
  } catch (...) {
    log(Level::error, wiring_.task->id(), caught().message + " (the batch is the capsule's: it is replayed all the same)");
    std::erase(plugins, wiring_.task.get());
  }
  restore_snapshot_quietly(snapshot, run, plugins);
  in_step_ = true;
  attributed(run, [&] {
    bus_.emit(Event::StepBegin, run);
    restore_snapshot_quietly(snapshot, run, plugins);
    run.batch = batch;
    begin();
    compute_gradients(run);
  });
  in_step_ = false;
}

Batch Trainer::next_batch(Run& run) {
  for (; rewind_.is_dropped(run.drawn); ++run.drawn) task_->next();
  return task_->next();
}

// However many pieces the batch is split into, their gradients add up to the whole batch's mean.
void Trainer::compute_gradients(Run& run) {
  for (auto& parameter : run.parameters) {
    parameter.model.mutable_grad().reset();
    parameter.owned.mutable_grad().reset();
  }
  run.loss.reset();
  run.found_inf.reset();
  run.overflow.reset();
  run.grad_scale.reset();
  run.scaled_norm.reset();
  const auto pieces = accumulation_->split(run.batch);
  refuse_half_a_batch(pieces, run.batch);
  for (const Batch& piece : pieces) {
    run.take(piece);
    bus_.emit(Event::BatchReady, run);
    run.piece_loss = forward([&] { return task_->loss(run.piece); });
    if (!run.piece_loss.requires_grad()) {
      called_ = wiring_.task.get();
      throw Error("its loss has no gradient: it does not depend on run.model's parameters");
    }
    bus_.emit(Event::LossReady, run);
    run.add_loss(run.piece_loss);
    backward(scaler_->scale(run.weigh(run.piece_loss)));
    run.piece_loss.reset();
  }
  distributed_->reduce(run);
  precision_->collect(run);
  scaler_->unscale(run);
  run.overflow = run.found_inf;
}

// Which gradients are not finite is known before a listener clips them, which spreads a nan. Only the CPU may look.
void Trainer::look_for_overflow(Run& run) {
  not_finite_.clear();
  if (!run.device.is_cpu()) return;
  const bool has_overflowed = run.overflow.defined() && is_set(run.overflow);
  if (has_overflowed || !std::isfinite(run.loss.item<double>())) not_finite_ = run.non_finite_gradients();
}

// What fails after the task has answered is the precision policy's.
torch::Tensor Trainer::forward(const std::function<torch::Tensor()>& body) {
  return precision_->forward([&] {
    auto loss = body();
    called_ = wiring_.precision.get();
    return loss;
  });
}

// The graph is the task's: what fails in its backward pass is told as the task's.
void Trainer::backward(const torch::Tensor& loss) {
  called_ = wiring_.task.get();
  loss.backward();
}

// Counts the step, and learns whether it was applied: at once on the CPU, one step late on a GPU. The rule is fixed, so
// runs stay reproducible.
void Trainer::settle(Run& run) {
  const auto count = [&](bool skipped, std::int64_t step) {
    run.updates += skipped ? 0 : 1;
    if (skipped) tell_skipped(run, step);
  };
  run.grad_scale.reset();  // the optimizer has divided, in memory or not
  run.drawn += 1;
  run.samples += run.batch.samples;
  run.tokens += run.batch.tokens;
  best_loss_ = best_loss_.defined() ? torch::fmin(best_loss_, run.loss) : run.loss;
  if (const auto late = skipped_.receive()) count(*late, run.step);
  if (!run.found_inf.defined()) {
    count(false, run.step + 1);
  } else if (run.device.is_cpu()) {
    count(is_set(run.found_inf), run.step + 1);
  } else {
    skipped_.send(run.found_inf);
  }
}

// On a GPU, a step late, the gradients are those of another step, and a veto looks as an overflow does.
void Trainer::tell_skipped(Run& run, std::int64_t step) {
  std::vector<std::pair<std::string, Notice::Detail>> details{{"step", step}};
  const bool is_known = step == run.step + 1;
  if (is_known && not_finite_.empty()) not_finite_ = run.non_finite_gradients();
  const bool has_overflowed = run.overflow.defined() && (!is_known || is_set(run.overflow));
  const bool is_bad = has_overflowed || !not_finite_.empty();
  details.emplace_back("reason", std::string(is_bad ? "gradients not finite" : "vetoed"));
  if (!not_finite_.empty()) details.emplace_back("gradients", some_of(not_finite_));
  run.notice("step_skipped", std::move(details));
}

void Trainer::prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init) {
  run.stop = &stop_;
  run.control = control(run);
  attributed(run, [&] {
    const auto all = wiring_.plugins();
    for (auto* plugin : all) {
      if (run.is_stopping()) return;
      called_ = plugin;
      plugin->prepare(run);
      if (plugin != wiring_.task.get()) continue;
      if (run.model == nullptr) throw Error("its prepare set no run.model", Error::Kind::plugin);
      called_ = nullptr;
      if (init) init(*run.model);
      called_ = plugin;
      run.model->to(run.device);
      run.model->train();
      built_ = built_model(*run.model);
      name_parameters(run);
      const auto batches = task_->batches_per_epoch();
      if (batches < 1) {
        throw Error(c10::str("its batches_per_epoch is ", batches, ", and must be at least 1"), Error::Kind::plugin);
      }
      if (epochs > 0 && __builtin_mul_overflow(epochs, batches, &run.steps)) {
        throw Error(c10::str(epochs, " epochs of ", batches, " steps are more than can be counted; lower [run] epochs"),
                    Error::Kind::configuration);
      }
    }
  });
  run.recompute = [this, &run] {
    const auto loss = run.loss, found_inf = run.found_inf, overflow = run.overflow;
    const auto* caller = called_;
    precision_->commit(run);  // the optimizer may have moved `owned`, and forward reads `model`
    compute_gradients(run);
    run.gradients();
    called_ = caller;
    // An inf of any of the passes makes the whole update void.
    if (found_inf.defined() && run.found_inf.defined()) run.found_inf = torch::maximum(found_inf, run.found_inf);
    if (overflow.defined() && run.overflow.defined()) run.overflow = torch::maximum(overflow, run.overflow);
    return std::exchange(run.loss, loss);
  };
}

Control Trainer::control(Run& run) {
  Control control;
  control.exchange = [this](const Table& roles, bool only_try) {
    if (only_try) return try_exchange(wiring_, roles);
    for (const auto& [role, table] : roles) asked_.insert_or_assign(role, table);
  };
  control.keep_snapshots = [this](std::int64_t every, std::int64_t keep) { rewind_.keep(every, keep); };
  control.rewind = [this](Plugin& asker, std::int64_t back, std::int64_t drop) {
    if (rewind_.empty()) throw Error("nothing is kept to go back to: ask for keep_snapshots in prepare");
    asked_rewind_ = {&asker, back, drop};
  };
  control.fail = [this](const Plugin& asker, const std::string& why) { asked_failure_ = {&asker, why}; };
  control.snapshot = [this, &run] { return snapshot(run); };
  control.keep_for_repeat = [this](const Plugin& asker) { repeat_.ask(asker); };
  control.repeat = [this, &run](const std::function<void()>& begin, const std::function<void()>& end) {
    const auto* caller = called_;
    const bool is_untouched = repeat_.run(run, wiring_, begin, [&] { compute_gradients(run); }, end);
    called_ = caller;
    return is_untouched;
  };
  return control;
}

// A tensor that is registered in two modules (a tied weight) is one parameter, under its first name, as in Python.
void Trainer::name_parameters(Run& run) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& entry : run.model->named_parameters()) {
    const auto& tensor = entry.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    run.parameters.push_back({entry.key(), tensor, tensor});
  }
}

void Trainer::exchange(Run& run, const Table& roles) {
  called_ = nullptr;  // who was called last may be gone then
  try {
    vernier::exchange(wiring_, run, built_, roles);
  } catch (...) {
    const auto [text, kind] = caught();
    std::throw_with_nested(Error(c10::str(text, "; nothing was exchanged after step ", run.step), kind));
  }
  run.metrics = {};  // those of others may come, in another order
  rewind_.forget();
}

void Trainer::exchange_what_is_asked(Run& run) {
  if (!asked_.empty()) exchange(run, std::exchange(asked_, {}));
}

void Trainer::resume(Run& run, State snapshot, bool allow_inexact) {
  const auto own = snapshot.part("trainer");
  if (own.has("exchanges")) exchange_again(wiring_, run, built_, own.text("exchanges"));
  called_ = nullptr;
  restore_snapshot(std::move(snapshot), run, wiring_.plugins(), configuration(), allow_inexact);
  if (own.has("asked")) asked_ = asked_again(own.text("asked"));
  load(run, own);
  rewind_.load(own.part("rewind"));
  saved_step_ = run.step;
}

// What a snapshot has of the trainer itself.
void Trainer::load(Run& run, const State& own) {
  validation_due_ = own.has("validation_due");
  rewound_from_ = own.has("rewound_from") ? own.integer("rewound_from") : -1;
  if (own.has("skipped")) skipped_.put(own.integer("skipped") != 0);
  if (own.has("amp/total_steps")) outcome_.amp.load(own.part("amp"));
  run.loss = own.has("loss") ? own.tensor("loss").to(run.device) : torch::Tensor();
  best_loss_ = own.has("best_loss") ? own.tensor("best_loss").to(run.device) : torch::Tensor();
  const auto real = [&](const char* name) {
    return own.has(name) ? std::optional(own.real(name)) : std::optional<double>();
  };
  outcome_.validation_loss = real("validation_loss");
  outcome_.best_validation_loss = real("best_validation_loss");
}

// Between two steps.
void Trainer::go_back(Run& run) {
  const auto [asker, back, drop] = std::exchange(asked_rewind_, {});
  const auto given_up = run.step;
  const auto memory = asker->save();
  const auto snapshot = rewind_.back_to(run.step - back);
  rewind_.drop(run.drawn - 1, drop);
  asked_.clear();
  skipped_ = {};
  is_whole_ = false;
  restore_snapshot_quietly(snapshot, run, wiring_.plugins());  // of this run, or let in where it was resumed
  load(run, snapshot.part("trainer"));
  asker->load(memory);
  is_whole_ = true;
  saved_step_ = -1;
  rewound_from_ = given_up;
}

Outcome Trainer::train(Run& run) {
  try {
    attributed(run, [&] { loop(run); });
  } catch (...) {
    const auto failure = std::current_exception();
    save_what_is_whole(run);
    try {
      bus_.emit(Event::RunFailed, run);
    } catch (...) {
      log(Level::error, "RunFailed", caught().message);
    }
    std::rethrow_exception(failure);
  }
  outcome_.updates = run.updates + (skipped_.peek() == false ? 1 : 0);  // on a GPU the last one is known only now
  if (run.loss.defined()) outcome_.loss = run.loss.item<double>();
  if (best_loss_.defined()) outcome_.best_loss = best_loss_.item<double>();
  return outcome_;
}

void Trainer::loop(Run& run) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t batches = task_->batches_per_epoch();
  bus_.emit(Event::RunBegin, run);
  if (validation_due_) {
    saved_step_ = -1;  // what is saved there lacks the validation
    conclude(run);
  } else {
    exchange_what_is_asked(run);
  }
  if (rewind_.due(run.step)) rewind_.add(run.step, snapshot(run));
  while (run.step < run.steps && stop_ == 0) {
    is_whole_ = false;
    tell_exchanged(wiring_, run);
    if (rewound_from_ >= 0) run.notice("rewound", {{"from", std::exchange(rewound_from_, -1)}, {"to", run.step}});
    if (run.step % batches == 0) bus_.emit(Event::EpochBegin, run);
    const auto start = Clock::now();
    in_step_ = true;
    step(run);
    in_step_ = false;
    const bool last = run.step + 1 == run.steps;
    validation_due_ = last || (validate_every_ > 0 && (run.step + 1) % validate_every_ == 0);
    if (validation_due_) synchronize(run.device);  // or the time that the device still takes would be nobody's
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    outcome_.seconds += seconds;
    outcome_.steps += 1;
    outcome_.samples += run.batch.samples;
    outcome_.tokens += run.batch.tokens;
    count_step(outcome_.amp, run, seconds);
    run.notices.clear();  // every listener has seen them
    run.step += 1;
    conclude(run);
  }
  outcome_.signal = is_finished(run) ? 0 : stop_.load();
  if (saved_step_ != run.step) save(run);
  if (skipped_.peek() == true) {  // on a GPU, of the last step
    tell_skipped(run, run.step);
    outcome_.amp.add_overflow();
  }
  bus_.emit(Event::RunEnd, run);
}

// What comes after a step: a validation, the end of an epoch, a checkpoint.
void Trainer::conclude(Run& run) {
  is_whole_ = true;
  if (asked_rewind_.asker != nullptr || !asked_.empty()) asked_failure_ = {};
  if (asked_rewind_.asker != nullptr) return go_back(run);
  const bool is_validated = !validation_due_ || validate(run);
  if (is_validated) end_epoch(run);
  if (asked_failure_.asker != nullptr) {
    called_ = std::exchange(asked_failure_.asker, nullptr);
    throw Error(asked_failure_.why);
  }
  if (!is_validated) return;
  exchange_what_is_asked(run);  // before a checkpoint, which goes on with what was asked for
  if (rewind_.due(run.step)) rewind_.add(run.step, snapshot(run));
  if (checkpoint_->due(run)) save(run);
}

void Trainer::end_epoch(Run& run) {
  validation_due_ = false;
  if (run.step % task_->batches_per_epoch() != 0) return;
  is_whole_ = false;
  bus_.emit(Event::EpochEnd, run);
  run.epoch += 1;
  is_whole_ = true;
}

// False where a signal cut it short: it is done again where the run goes on, which is then the run that was not
// stopped.
bool Trainer::validate(Run& run) {
  if (run.is_stopping()) return false;
  // Modules that a task keeps in evaluation mode (frozen ones) are to stay so; parents come first in the list.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& module : run.model->modules()) modes.emplace_back(module, module->is_training());
  run.model->eval();
  torch::Tensor loss;
  {
    const torch::NoGradGuard no_grad;
    loss = forward([&] { return task_->validate(run); });
  }
  for (auto& [module, training] : modes) module->train(training);
  if (run.is_stopping()) return false;
  if (!loss.defined()) return true;
  const double value = loss.item<double>();
  run.metrics.set("validation_loss", value);
  outcome_.validation_loss = value;
  outcome_.best_validation_loss = std::fmin(value, outcome_.best_validation_loss.value_or(value));
  bus_.emit(Event::Validated, run);
  return true;
}

State Trainer::snapshot(const Run& run) {
  auto snapshot = take_snapshot(run, wiring_.plugins(), configuration());
  // On a GPU the last step's flag is still on its way; waiting for it here must not make it count a step early.
  if (const auto skipped = skipped_.peek()) snapshot.put("trainer/skipped", static_cast<std::int64_t>(*skipped));
  if (const auto exchanges = exchanges_of(wiring_); !exchanges.empty()) snapshot.put("trainer/exchanges", exchanges);
  snapshot.put("trainer/amp", outcome_.amp.state());
  if (run.loss.defined()) snapshot.put("trainer/loss", run.loss);
  if (best_loss_.defined()) snapshot.put("trainer/best_loss", best_loss_);
  if (outcome_.validation_loss) snapshot.put("trainer/validation_loss", *outcome_.validation_loss);
  if (outcome_.best_validation_loss) snapshot.put("trainer/best_validation_loss", *outcome_.best_validation_loss);
  if (!asked_.empty()) snapshot.put("trainer/asked", text_of_asked(asked_));
  if (rewound_from_ >= 0) snapshot.put("trainer/rewound_from", rewound_from_);
  if (validation_due_) snapshot.put("trainer/validation_due", std::int64_t{1});
  return snapshot;
}

void Trainer::save(Run& run) {
  auto whole = snapshot(run);
  whole.put("trainer/rewind", rewind_.save());
  checkpoint_->write(whole, run);
  saved_step_ = run.step;
}

// Hours of training need not be lost with a step that failed, where what it worked on is whole.
void Trainer::save_what_is_whole(Run& run) {
  if (!is_whole_ || saved_step_ == run.step || called_ == wiring_.checkpoint.get()) return;
  try {
    save(run);
  } catch (...) {
    log(Level::error, "checkpoint after the failure", caught().message);
  }
}

template <class Body>
void Trainer::attributed(const Run& run, const Body& body) {
  try {
    body();
  } catch (...) {
    const std::string when = in_step_       ? " in step " + std::to_string(run.step + 1)
                             : run.step > 0 ? " after step " + std::to_string(run.step)
                                            : "";
    const std::string who = called_ != nullptr ? called_->id() : "trainer";
    // What a person wrote is to be changed: say where.
    const bool is_configured = caught().kind == Error::Kind::configuration && called_ != nullptr;
    rethrow_naming(who, when, Error::Kind::training, is_configured ? wiring_.table_of(*called_).where : "");
  }
}

}  // namespace vernier
