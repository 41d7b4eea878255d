#include "trainer.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/memory.h>

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

std::optional<double> weight_of(const std::vector<Batch>& pieces) {
  double all = 0;
  for (const auto& piece : pieces) {
    if (!piece.weight) return std::nullopt;
    all += *piece.weight;
  }
  if (!(all > 0)) throw Error("nothing in the batch has a weight: its samples are all padding");
  return all;
}

// The order in which monitors show them is that of their first use, and not every step of a run has them.
void begin_metrics(Run& run) {
  run.metrics = {};
  run.metrics.set("pieces", 0.0);
  run.metrics.set("batch", 0.0);
  run.metrics.clear();
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
  if (memory_limit(run.device) > 0 && !optimizer_->steps_in_backward()) {
    undo_.keep(run, wiring_);
    can_undo_ = true;
  }
  bus_.emit(Event::StepBegin, run);
  run.batch = next_batch(run);
  if (repeat_.is_asked()) repeat_.keep(run, wiring_);
  compute_gradients(run, Tries::smaller);
  if (repeat_.is_asked()) repeat_.mark(run);
  fates_.look(run);
  bus_.emit(Event::GradientsReady, run);
  if (!optimizer_->divides_gradients()) run.gradients();
  can_undo_ = false;
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
    if (repeat_.is_asked()) repeat_.keep(run, wiring_);
    compute_gradients(run, Tries::smaller);
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
    compute_gradients(run, Tries::once);
  });
  in_step_ = false;
}

void Trainer::pass_over_dropped(Run& run) {
  while (rewind_.is_dropped(run.drawn)) {
    task_->next();
    run.drawn += 1;
    end_epoch(run);
  }
}

// An update does not go over the end of an epoch.
Batch Trainer::next_batch(Run& run) {
  run.batches = gathered_ = 1;
  if (!accumulation_->gathers()) {
    auto batch = task_->next();
    samples_of_batch_ = std::max(samples_of_batch_, batch.samples);
    return batch;
  }
  const auto samples = samples_of_batch(run);
  const auto wanted = accumulation_->batches(run.step, run.epoch, samples);
  std::vector<Batch> batches;
  auto next = run.drawn;
  do {
    auto batch = task_->next();
    if (!rewind_.is_dropped(next)) batches.push_back(std::move(batch));
    next += 1;
  } while (next % task_->batches_per_epoch() != 0 && static_cast<std::int64_t>(batches.size()) < wanted);
  gathered_ = next - run.drawn;
  run.batches = static_cast<std::int64_t>(batches.size());
  return Batch::concatenated(batches);
}

// Of a whole one, which the first is: looked at, and put back.
std::int64_t Trainer::samples_of_batch(const Run& run) {
  if (samples_of_batch_ > 0) return samples_of_batch_;
  auto random = at::globalContext().defaultGenerator(torch::kCPU);
  const auto before = random.get_state();
  const auto place = task_->save();
  samples_of_batch_ = task_->next().samples;
  task_->load(place);
  random.set_state(before);
  return samples_of_batch_;
}

std::int64_t Trainer::steps_of(std::int64_t epochs, Run& run) {
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
      left -= std::max<std::int64_t>(1, accumulation_->batches(steps, epoch, samples));
    }
  }
  return steps;
}

void Trainer::compute_gradients(Run& run, Tries tries) {
  tries == Tries::smaller ? compute_pieces_that_fit(run) : compute_pieces(run);
  distributed_->reduce(run);
  precision_->collect(run);
  scaler_->unscale(run);
  run.overflow = run.found_inf;
}

// However many pieces the batch is split into, their gradients add up to the whole batch's mean.
void Trainer::compute_pieces(Run& run) {
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
  run.batch.weight = weight_of(pieces);
  for (const Batch& piece : pieces) {
    if (piece.weight == 0) continue;
    if (!run.device.is_cpu() && memory_limit(run.device) > 0) reset_peak_memory(run.device);
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
    refuse_too_much_memory(run);
  }
  if (pieces.size() == 1 && gathered_ == 1) return;
  run.metrics.set("pieces", static_cast<double>(pieces.size()));
  run.metrics.set("batch", static_cast<double>(run.batch.samples));
}

// A batch that finds no memory is tried again in smaller pieces, from the state in which it was tried first; all ranks
// or none.
void Trainer::compute_pieces_that_fit(Run& run) {
  const auto told = run.notices.size();
  for (;;) {
    std::string trouble;  // of this rank
    const Plugin* culprit = nullptr;
    try {
      compute_pieces(run);
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      trouble = caught().message;
      culprit = called_;
    }
    const bool fits = trouble.empty();
    if (repeat_.is_asked() ? distributed_->least(fits) == 1 : fits) return;
    run.piece_loss.reset();
    run.notices.resize(told);
    if (!accumulation_->split_finer(run)) {
      called_ = culprit;
      has_run_out_ = true;
      throw Error((trouble.empty() ? "another rank found no memory" : trouble) +
                  (run.piece.samples > 1 ? "; train in smaller pieces: [accumulation] use = \"fit\" finds their size"
                                         : "; a single sample is too much: compute activations again ([task] recompute), or "
                                           "raise [run] memory_limit where there is one"));
    }
    if (!run.device.is_cpu()) at::accelerator::emptyCache();
    repeat_.again(run, wiring_);
  }
}

// LibTorch stops at a limit on a CPU alone.
void Trainer::refuse_too_much_memory(const Run& run) {
  const auto limit = run.device.is_cpu() ? 0 : memory_limit(run.device);
  if (limit == 0) return;
  const auto peak = allocated_memory(run.device).peak;
  TORCH_CHECK_WITH(OutOfMemoryError, peak <= limit, "a piece of ", run.piece.samples, " samples took ", memory_text(peak),
                   ", and the limit is ", memory_text(limit));
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

// Counts the step, and its update as far as it is known.
void Trainer::settle(Run& run) {
  run.grad_scale.reset();  // the optimizer has divided, in memory or not
  run.drawn += gathered_;
  run.samples += run.batch.samples;
  run.tokens += run.batch.tokens;
  best_loss_ = best_loss_.defined() ? torch::fmin(best_loss_, run.loss) : run.loss;
  fates_.count(run);
}

void Trainer::prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init) {
  run.stop = &stop_;
  run.learns_late = run.learns_late || !run.device.is_cpu();
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
      if (accumulation_->gathers()) samples_of_batch(run);  // now, for the first batch is a whole one
      if (epochs > 0) run.steps = steps_of(epochs, run);
    }
  });
  run.recompute = [this, &run] {
    const auto loss = run.loss, found_inf = run.found_inf, overflow = run.overflow;
    const auto* caller = called_;
    precision_->commit(run);  // the optimizer may have moved `owned`, and forward reads `model`
    compute_gradients(run, Tries::once);
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
  control.least = [this](std::int64_t value) { return wiring_.distributed->least(value); };
  control.snapshot = [this, &run] { return snapshot(run); };
  control.keep_for_repeat = [this](const Plugin& asker) {
    if (wiring_.optimizer->steps_in_backward()) {
      throw Error(asker.id() + " has gradients computed again, and with " + wiring_.optimizer->id() +
                      "'s in_backward the weights have changed by then: leave one of them out",
                  Error::Kind::configuration);
    }
    repeat_.ask(asker);
  };
  control.repeat = [this, &run](const std::function<void()>& begin, const std::function<void()>& end) {
    const auto* caller = called_;
    const bool is_untouched = repeat_.run(run, wiring_, begin, [&] { compute_gradients(run, Tries::once); }, end);
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
  begin_metrics(run);  // those of others may come, in another order
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
  if (own.has("samples_of_batch")) samples_of_batch_ = own.integer("samples_of_batch");
  rewound_from_ = own.has("rewound_from") ? own.integer("rewound_from") : -1;
  fates_.load(own);
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
  rewind_.drop(run.drawn - 1, drop * run.batches);
  asked_.clear();
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
    if (can_undo_ && (has_run_out_ || is_out_of_memory(failure))) undo(run);
    save_what_is_whole(run);
    try {
      bus_.emit(Event::RunFailed, run);
    } catch (...) {
      log(Level::error, "RunFailed", caught().message);
    }
    std::rethrow_exception(failure);
  }
  const auto last = fates_.last();  // on a GPU it is known only now
  outcome_.updates = run.updates + (last && !last->is_skipped ? 1 : 0);
  if (run.loss.defined()) outcome_.loss = run.loss.item<double>();
  if (best_loss_.defined()) outcome_.best_loss = best_loss_.item<double>();
  return outcome_;
}

// The run ends, and what saves it is not to fail of the same.
void Trainer::undo(Run& run) {
  try {
    limit_memory(run.device, 0);
    undo_.put(run);
    is_whole_ = true;
  } catch (...) {
    log(Level::error, "undoing the step", caught().message);
  }
}

void Trainer::loop(Run& run) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t batches = task_->batches_per_epoch();
  begin_metrics(run);
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
    pass_over_dropped(run);
    if (run.drawn % batches == 0) bus_.emit(Event::EpochBegin, run);
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
  if (const auto last = fates_.last(); last && last->is_skipped) {  // on a GPU
    Fates::tell(run, run.step, *last);
    if (last->has_overflowed) outcome_.amp.add_overflow();
  }
  bus_.emit(Event::RunEnd, run);
}

// What comes after a step: a validation, the end of an epoch, a checkpoint.
void Trainer::conclude(Run& run) {
  is_whole_ = true;
  if (asked_rewind_.asker != nullptr || !asked_.empty()) asked_failure_ = {};
  if (asked_rewind_.asker != nullptr) return go_back(run);
  const bool is_validated = !validation_due_ || validate(run);
  if (is_validated) {
    validation_due_ = false;
    end_epoch(run);
  }
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
  if (run.drawn / task_->batches_per_epoch() == run.epoch) return;
  const bool was_whole = std::exchange(is_whole_, false);
  bus_.emit(Event::EpochEnd, run);
  run.epoch += 1;
  is_whole_ = was_whole;
}

// False where a signal cut it short: it is done again where the run goes on, which is then the run that was not
// stopped.
bool Trainer::validate(Run& run) {
  if (run.is_stopping()) return false;
  // Modules that a task keeps in evaluation mode (frozen ones) are to stay so; parents come first in the list.
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  for (auto& module : run.model->modules()) modes.emplace_back(module, module->is_training());
  const auto restore = [&] {
    for (auto& [module, training] : modes) module->train(training);
  };
  run.model->eval();
  torch::Tensor loss;
  try {
    const torch::NoGradGuard no_grad;
    run.validate = [&] { return forward([&] { return task_->validate(run); }); };
    bus_.emit(Event::Validating, run);
    loss = std::exchange(run.validate, nullptr)();
  } catch (...) {
    restore();
    throw;
  }
  restore();
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
  State fates;
  fates_.save(fates);
  snapshot.put("trainer", fates);
  if (const auto exchanges = exchanges_of(wiring_); !exchanges.empty()) snapshot.put("trainer/exchanges", exchanges);
  snapshot.put("trainer/amp", outcome_.amp.state());
  if (run.loss.defined()) snapshot.put("trainer/loss", run.loss);
  if (best_loss_.defined()) snapshot.put("trainer/best_loss", best_loss_);
  if (outcome_.validation_loss) snapshot.put("trainer/validation_loss", *outcome_.validation_loss);
  if (outcome_.best_validation_loss) snapshot.put("trainer/best_validation_loss", *outcome_.best_validation_loss);
  if (!asked_.empty()) snapshot.put("trainer/asked", text_of_asked(asked_));
  if (samples_of_batch_ > 0) snapshot.put("trainer/samples_of_batch", samples_of_batch_);
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
