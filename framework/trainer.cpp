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
  keep_for_undo(run);
  tell_exchanged(wiring_, run);
  if (rewound_from_ >= 0) run.notice("rewound", {{"from", rewound_from_}, {"to", run.step}});
  pass_over_dropped(run);
  if (run.drawn % task_->batches_per_epoch() == 0) bus_.emit(Event::EpochBegin, run);
  bus_.emit(Event::StepBegin, run);
  run.batch = next_batch(run);
  if (repeat_.is_asked()) repeat_.keep(run, wiring_);
  compute_gradients(run, Tries::smaller);
  if (repeat_.is_asked()) repeat_.mark(run);
  fates_.look(run);
  emit_gradients_ready(run);
  keep_for_looks(run);
  can_undo_ = false;
  undo_.forget();
  rewound_from_ = -1;
  update(run);
  scaler_->update(run);
  settle(run);
  bus_.emit(Event::StepEnd, run);
}

void Trainer::emit_gradients_ready(Run& run) {
  looks_.clear();
  takes_looks_ = true;
  bus_.emit(Event::GradientsReady, run);
  takes_looks_ = false;
  if (!optimizer_->divides_gradients()) run.gradients();
}

// Where there is no room for the copies, nobody looks.
void Trainer::keep_for_looks(Run& run) {
  if (looks_.empty()) return;
  try {
    undo_update_.keep(run, wiring_, looks_, repeat_.is_asked() && repeat_.is_untouched(run));
  } catch (...) {
    looks_.clear();
    undo_update_ = {};  // what it had copied by then
    log(Level::warning, "trainer", c10::str("the update of step ", run.step + 1, " is not looked at, for it cannot be kept: ",
                                            caught().message));
  }
}

void Trainer::update(Run& run) {
  apply_update(run);
  for (const auto& [asker, look] : std::exchange(looks_, {})) {
    called_ = asker;
    can_undo_update_ = true;
    look(run);
    can_undo_update_ = false;
    if (undo_update_.broken()) std::rethrow_exception(undo_update_.broken());
  }
  undo_update_.forget();
}

void Trainer::apply_update(Run& run) {
  optimizer_->step(run);
  precision_->commit(run);
}

// What cannot be put back ends the run, whatever the asker makes of it.
void Trainer::undo_update(Run& run, const std::function<void()>& begin, const std::function<void()>& end) {
  if (!can_undo_update_) throw Error("an update is undone once, while it is looked at: ask for look_at_update");
  can_undo_update_ = false;
  const auto* caller = called_;
  undo_update_.run(run, wiring_, repeat_, begin, [&] { apply_update(run); }, end);
  called_ = caller;
}

// For what may end the step before its update. It takes some microseconds: of steps under a millisecond only the first
// thousand have it, for what others have trained since the last checkpoint is soon trained again.
void Trainer::keep_for_undo(Run& run) {
  constexpr auto is_short = std::chrono::milliseconds(1);
  const auto now = std::chrono::steady_clock::now();
  const auto last_step = now - std::exchange(begun_, now);
  can_undo_ = false;
  if (optimizer_->steps_in_backward() || (++begun_steps_ > 1000 && last_step < is_short)) return;
  try {
    undo_.keep(run, wiring_);
    can_undo_ = true;
  } catch (...) {
    if (!std::exchange(has_told_undo_, true)) {
      log(Level::warning, "trainer", caught().message + " (a step that fails cannot be undone: it will not be saved)");
    }
  }
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

void Trainer::replay_update(Run& run, const std::function<void()>& begin) {
  in_step_ = true;
  attributed(run, [&] {
    emit_gradients_ready(run);
    begin();
    apply_update(run);
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
  count_step(run);
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
    refuse_exchanges_that_never_fit();
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

void Trainer::refuse_exchanges_that_never_fit() {
  std::vector<Table> asked;
  for (const auto& [asker, roles] : tried_) asked.push_back(roles);
  for (const auto& [asker, roles] : tried_) {
    called_ = asker;
    refuse_what_never_fits(wiring_, roles, asked);
  }
}

Control Trainer::control(Run& run) {
  Control control;
  control.exchange = [this](const Table& roles, bool only_try) {
    if (only_try) {
      try_exchange(wiring_, roles);
      if (!roles.empty()) tried_.emplace_back(called_, roles);
      return;
    }
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
  control.look_at_update = [this](const Plugin& asker, std::function<void(Run&)> look) {
    if (!takes_looks_) throw Error(asker.id() + " asks for look_at_update outside of GradientsReady");
    if (wiring_.optimizer->steps_in_backward()) throw Error("with in_backward there is no update that could be looked at");
    looks_.emplace_back(&asker, std::move(look));
  };
  control.undo_update = [this, &run](const std::function<void()>& begin, const std::function<void()>& end) {
    undo_update(run, begin, end);
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

void Trainer::attributed(const Run& run, const std::function<void()>& body) {
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
