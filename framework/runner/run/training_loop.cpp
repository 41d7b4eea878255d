#include "training_loop.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/plugin_calls.h"
#include "run/process/crash.h"
#include "run/state/snapshot.h"
#include "run/process/warnings.h"

namespace vernier {

namespace {

// A strategy that loses samples would train on something else than the user's batch, in silence.
void refuse_half_a_batch(const std::vector<Batch>& micro_batches, const Batch& batch) {
  std::int64_t samples = 0;
  for (const auto& micro_batch : micro_batches) samples += micro_batch.samples;
  if (samples == batch.samples && (samples == 0 || !micro_batches.empty())) return;
  throw Error(c10::str("it split a batch of ", batch.samples, " samples into ", samples));
}

std::optional<double> weight_of(const std::vector<Batch>& micro_batches) {
  if (micro_batches.empty()) return std::nullopt;  // of a rank without samples
  double all = 0;
  for (const auto& micro_batch : micro_batches) {
    if (!micro_batch.weight) return std::nullopt;
    all += *micro_batch.weight;
  }
  return all;
}

// A mean over the micro-batch, times its share of the batch: by weight, else by samples. Differentiable.
torch::Tensor weighted(const Batch& part, const WholeBatch& whole, const torch::Tensor& mean) {
  const auto samples = static_cast<double>(part.samples);
  if (samples == whole.samples) return mean;
  if (!part.weight || !whole.weight) return mean * (samples / whole.samples);
  return mean * (*part.weight / *whole.weight);
}

void add_loss(Run& run, const WholeBatch& whole) {
  const auto part = weighted(run.micro_batch, whole, run.micro_batch_loss.detach().to(torch::kFloat32));
  run.loss = run.loss.defined() ? run.loss + part : part;
}

// As torch::fmin, but on a CPU without LibTorch's dispatcher: the lesser number, or the one that is a number.
torch::Tensor lesser_of(const torch::Tensor& best, const torch::Tensor& loss) {
  if (!best.defined()) return loss;
  const auto is_on_host = [](const torch::Tensor& x) { return x.is_cpu() && x.scalar_type() == torch::kFloat32; };
  if (!is_on_host(best) || !is_on_host(loss)) return torch::fmin(best, loss);
  const float before = *best.const_data_ptr<float>(), now = *loss.const_data_ptr<float>();
  return now < before || std::isnan(before) ? loss : best;
}

// Advice for a micro-batch of several samples, or of one, that does not fit into memory.
std::string smaller_by(const Accumulation& accumulation) {
  const auto remedy = accumulation.memory_remedy();
  return "; train in smaller micro-batches" + (remedy.empty() ? "" : ": " + remedy);
}

std::string less_by(const Task& task) {
  const auto remedy = task.memory_remedy();
  return "; a single sample is too much: " + (remedy.empty() ? "" : remedy + ", or ") +
         "raise [run] memory_limit where there is one";
}

// The finding of one of several passes counts for all of them.
void join(torch::Tensor& flag, const torch::Tensor& before) {
  if (before.defined()) flag = flag.defined() ? torch::maximum(before, flag) : before;
}

}  // namespace

TrainingLoop::TrainingLoop(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop)
    : wiring_(wiring),
      bus_(wiring.bus),
      task_(wiring.task, called_),
      precision_(wiring.precision, called_),
      scaler_(wiring.scaler, called_),
      accumulation_(wiring.accumulation, called_),
      optimizer_(wiring.optimizer, called_),
      checkpoint_(wiring.checkpoint, called_),
      ranks_(wiring.distributed),
      validate_every_(validate_every),
      stop_(stop),
      transaction_(wiring) {}

// One update: roles are called, listeners observe (see the comment over Event).
void TrainingLoop::step(Run& run, Until until) {
  begin_step(run);
  transaction_.mark(Stage::begin, run);  // until the update, a failure goes back to here
  skip_dropped_batches(run);
  emit(Event::StepBegin, run, Part::data_wait);  // and says what the time is spent on next
  run.batch = next_batch(run);
  transaction_.mark(Stage::batch, run);
  compute_gradients(run);  // out of memory: back to Stage::batch, in smaller micro-batches
  if (until == Until::gradients) return;
  transaction_.gradients_computed(run);
  update_log_.look(run);
  emit(Event::GradientsReady, run, Part::update);  // listeners clip, measure, veto
  divide_gradients(run);
  transaction_.commit();    // weights change from here on
  step_optimizer(run);      // changes nothing where run.skip_update is set
  precision_->commit(run);  // master weights into the model's
  share_weights(run);       // where other ranks update them
  emit(Event::UpdateDone, run, Part::update);
  scaler_->update(run);
  finish_step(run);
  emit(Event::StepEnd, run, Part::trainer);
}

void TrainingLoop::emit(Event event, Run& run, Part next) {
  const bool is_heard = has_listeners_[static_cast<std::size_t>(event)];
  if (is_heard && clock_.part() != Part::plugins) clock_.to(Part::plugins);
  bus_.emit(event, run);
  if (is_heard || clock_.part() != next) clock_.to(next);
}

void TrainingLoop::note_listeners() {
  for (std::size_t i = 0; i < has_listeners_.size(); ++i) {
    has_listeners_[i] = std::ranges::any_of(
        wiring_.plugins(), [&](const Plugin* plugin) { return bus_.listens(*plugin, static_cast<Event>(i)); });
  }
}

void TrainingLoop::begin_step(Run& run) {
  clock_.to(Part::trainer);
  called_ = nullptr;
  run.batch = run.micro_batch = {};  // their memory is free for the next ones
  run.metrics.clear();
  run.learning_rate_factor = 1.0;
  run.non_finite_reported = false;
  run.grad_norm.reset();
  run.swapped = report_swaps(wiring_, run);
  if (rewound_from_ >= 0) {
    run.notice("rewound", {{"from", rewound_from_}, {"to", run.step}},
               c10::str("the run went back from step ", rewound_from_, " to step ", run.step));
  }
}

void TrainingLoop::compute_gradients(Run& run, Tries tries) {
  const NotOfListener asked;  // where a listener asks for it
  const auto part = clock_.part();
  ranks_.begin_gradients();
  tries == Tries::smaller ? compute_micro_batches_that_fit(run) : compute_micro_batches(run);
  all_reduce(run);
  precision_->collect(run);
  scaler_->unscale(run);
  run.skip_update = run.found_inf.defined() ? run.found_inf.clone() : run.found_inf;  // a veto leaves found_inf alone
  if (part != Part::trainer) clock_.to(part);  // in a step, GradientsReady ends the time of backward
}

// The gradients and the loss of the whole batch, where this rank has computed those of its share.
void TrainingLoop::all_reduce(Run& run) {
  if (!ranks_.are_several()) return;
  const auto part = clock_.to(Part::communication);
  called_ = wiring_.distributed.get();
  ranks_.all_reduce(run, {stop_, is_out_of_time(), clock_.seconds(Part::forward) + clock_.seconds(Part::backward)});
  clock_.to(part);
}

// A failure here means that a rank is lost, and is not the fault of the plugin that was called last.
const WholeBatch& TrainingLoop::whole_batch() {
  const auto* caller = std::exchange(called_, wiring_.distributed.get());
  const auto& whole = ranks_.whole();
  called_ = caller;
  return whole;
}

// However many micro-batches there are, their gradients add up to those of the whole batch's mean.
void TrainingLoop::compute_micro_batches(Run& run) {
  const RandomOfRank random(run, *wiring_.distributed);
  for (auto& parameter : run.parameters) {
    parameter.model.mutable_grad().reset();
    parameter.master.mutable_grad().reset();
  }
  for (auto* result : {&run.loss, &run.found_inf, &run.skip_update, &run.grad_scale, &run.scaled_norm}) result->reset();
  const auto micro_batches = run.batch.samples > 0 ? accumulation_->split(run.batch) : std::vector<Batch>{};
  refuse_half_a_batch(micro_batches, run.batch);
  run.batch.weight = weight_of(micro_batches);
  ranks_.weigh(run.batch);
  run.micro_batches = static_cast<std::int64_t>(micro_batches.size());
  for (const Batch& micro_batch : micro_batches) {
    if (micro_batch.weight == 0) continue;
    if (!run.device.is_cpu() && memory_limit(run.device) > 0) reset_peak_memory(run.device);
    run.micro_batch = micro_batch.to(run.device);
    emit(Event::BatchReady, run, Part::forward);
    run.micro_batch_loss = forward([&] { return mean_of(task_->loss(run.micro_batch), "loss"); });
    if (!run.micro_batch_loss.requires_grad()) {
      called_ = wiring_.task.get();
      throw Error("its loss has no gradient: it does not depend on run.model's parameters");
    }
    emit(Event::LossReady, run, Part::backward);
    const auto& whole = whole_batch();
    add_loss(run, whole);
    backward(scaler_->scale(weighted(run.micro_batch, whole, run.micro_batch_loss)));
    run.micro_batch_loss.reset();
    refuse_too_much_memory(run);
  }
  if (const auto weight = whole_batch().weight; weight && !(*weight > 0)) {
    called_ = wiring_.accumulation.get();
    throw Error("nothing in the batch has a weight: its samples are all padding");
  }
  if (run.micro_batches == 1 && gathered_ == 1) return;
  run.metrics.set("micro_batches", static_cast<double>(run.micro_batches));
  run.metrics.set("batch", ranks_.whole().samples);
}

// A batch that runs out of memory is tried again in smaller micro-batches, from the same state. The other ranks wait.
void TrainingLoop::compute_micro_batches_that_fit(Run& run) {
  for (;;) {
    std::string trouble;  // of this rank
    const Plugin* culprit = nullptr;
    try {
      compute_micro_batches(run);
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      trouble = caught().message;
      culprit = called_;
    }
    const bool fits = trouble.empty(), can_retry = transaction_.is_wanted(Stage::batch);
    if (fits) return;
    run.micro_batch_loss.reset();
    const auto failed = run.micro_batch;
    if (can_retry) transaction_.roll_back(Stage::batch, run);
    run.micro_batch = failed;
    if (!can_retry || !accumulation_->shrink(run)) {
      const auto remedy = failed.samples > 1 ? smaller_by(*wiring_.accumulation) : less_by(*wiring_.task);
      called_ = culprit;
      throw Error(trouble + remedy);
    }
    if (!run.device.is_cpu()) at::accelerator::emptyCache();
  }
}

// Another count would weigh the samples wrongly, or leave some out, in silence.
void TrainingLoop::refuse_other_samples(const Batch& batch) {
  if (batch.samples < 1 && !batch.is_share) {
    throw Error(c10::str("its next() returned a batch of ", batch.samples,
                         " samples; set Batch::samples to the number of its samples, at least 1"));
  }
  for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
    const auto& tensor = batch.tensors[i];
    if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch.samples) continue;
    throw Error(c10::str("its next() returned a batch of ", batch.samples, " samples with tensors[", i, "] ",
                         tensor.defined() ? c10::str("of shape ", tensor.sizes()) : "undefined",
                         "; set Batch::samples to the size of dimension 0, which is the sample in each tensor"));
  }
}

// Refuses a loss that is not one number.
torch::Tensor TrainingLoop::mean_of(torch::Tensor loss, const char* function) {
  if (loss.defined() && loss.dim() == 0) return loss;
  throw Error(c10::str("its ", function, "() returned ",
                       loss.defined() ? c10::str("a tensor of shape ", loss.sizes()) : "an undefined tensor",
                       "; return the mean over the samples, a 0-dim tensor, as loss.mean() gives it"));
}

// LibTorch stops at a limit on a CPU alone.
void TrainingLoop::refuse_too_much_memory(const Run& run) {
  const auto limit = run.device.is_cpu() ? 0 : memory_limit(run.device);
  if (limit == 0) return;
  const auto peak = allocated_memory(run.device).peak;
  TORCH_CHECK_WITH(OutOfMemoryError, peak <= limit, "a micro-batch of ", run.micro_batch.samples, " samples took ",
                   memory_text(peak), ", and the limit is ", memory_text(limit));
}

// A failure after the task has answered is attributed to the precision.
torch::Tensor TrainingLoop::forward(const std::function<torch::Tensor()>& body) {
  return precision_->forward([&] {
    auto loss = body();
    called_ = wiring_.precision.get();
    return loss;
  });
}

// The graph is the task's: what fails in its backward pass is attributed to the task.
void TrainingLoop::backward(const torch::Tensor& loss) {
  called_ = wiring_.task.get();
  loss.backward();
}

// For an optimizer that does not divide by run.grad_scale in its own pass.
void TrainingLoop::divide_gradients(Run& run) {
  if (!optimizer_->divides_gradients()) run.gradients();
}

void TrainingLoop::step_optimizer(Run& run) {
  const OwnGradients own(run);
  optimizer_->step(run);
}

// Sends the weights that each rank updated to the other ranks.
void TrainingLoop::share_weights(Run& run) {
  if (!ranks_.are_sharded()) return;
  const auto part = clock_.to(Part::communication);
  called_ = wiring_.distributed.get();
  ranks_.share_weights(run, Ranks::Weights::trained);
  clock_.to(part);
}

void TrainingLoop::finish_step(Run& run) {
  rewound_from_ = -1;
  run.grad_scale.reset();  // the optimizer has divided, in memory or not
  run.batches_drawn += gathered_;
  const auto& whole = ranks_.whole();
  run.samples += std::llround(whole.samples);
  run.tokens += whole.tokens;
  ranks_.name_slow_ranks(run);
  best_loss_ = lesser_of(best_loss_, run.loss);
  update_log_.count(run, precision_->is_mixed());
  clock_.show(run.metrics, run.device.is_cpu());
}

void TrainingLoop::skip_dropped_batches(Run& run) {
  while (snapshots_.is_dropped(run.batches_drawn)) {
    task_->next();
    run.batches_drawn += 1;
    end_epoch(run);
  }
}

// An update does not go over the end of an epoch.
Batch TrainingLoop::next_batch(Run& run) {
  auto batch = draw_batch(run);
  clock_.to(Part::trainer);
  run.metrics.set_time("data_wait", clock_.seconds(Part::data_wait));
  return batch;
}

Batch TrainingLoop::draw_batch(Run& run) {
  run.batches = gathered_ = 1;
  if (replayed_) return replayed_();
  if (!accumulation_->gathers()) {
    auto batch = task_->next();
    refuse_other_samples(batch);
    if (!batch.is_share) samples_of_batch_ = std::max(samples_of_batch_, batch.samples);
    return ranks_.share_of(std::move(batch));
  }
  const auto samples = samples_of_batch(run);
  const auto wanted = accumulation_->batches_per_update(run.step, run.epoch, samples);
  std::vector<Batch> batches;
  auto next = run.batches_drawn;
  do {
    auto batch = task_->next();
    refuse_other_samples(batch);
    if (!snapshots_.is_dropped(next)) batches.push_back(ranks_.share_of(std::move(batch)));
    next += 1;
  } while (next % task_->batches_per_epoch() != 0 && static_cast<std::int64_t>(batches.size()) < wanted);
  gathered_ = next - run.batches_drawn;
  run.batches = static_cast<std::int64_t>(batches.size());
  return Batch::concatenated(batches);
}

// The number of samples of a whole batch. The first batch is one: it is drawn, and put back.
std::int64_t TrainingLoop::samples_of_batch(Run& run) {
  if (samples_of_batch_ > 0) return samples_of_batch_;
  Scope scope;
  scope.plugins = {wiring_.task.get()};
  Savepoint before;
  before.take(run, scope);
  const auto batch = task_->next();
  refuse_other_samples(batch);
  before.restore(run);
  ranks_.begin_gradients();
  ranks_.weigh(batch);
  samples_of_batch_ = batch.is_share ? std::llround(ranks_.whole().samples) : batch.samples;
  return samples_of_batch_;
}

torch::Tensor TrainingLoop::recompute(Run& run) {
  const auto loss = run.loss, found_inf = run.found_inf, skip_update = run.skip_update;
  const auto* caller = called_;
  precision_->commit(run);  // the optimizer may have moved `master`, and forward reads `model`
  compute_gradients(run, Tries::once);
  run.gradients();
  called_ = caller;
  join(run.found_inf, found_inf);
  join(run.skip_update, skip_update);
  return std::exchange(run.loss, loss);
}

void TrainingLoop::lone_step(Run& run) {
  in_step_ = true;
  attributed(run, [&] { step(run); });
  in_step_ = false;
  run.notices.clear();
  run.step += 1;
}

void TrainingLoop::dry_run(Run& run) {
  in_step_ = true;
  attributed(run, [&] {
    step(run, Until::gradients);
    run.gradients();
  });
  in_step_ = false;
}

// Plugins set their per-step members at StepBegin. Loading the snapshot afterwards restores what they save. The task's
// own memory is its place in the data, which may be gone: the batch is there.
void TrainingLoop::replay(Run& run, const State& snapshot, const Batch& batch, const std::function<void()>& begin) {
  auto plugins = wiring_.plugins();
  try {
    wiring_.task->load(snapshot.part("plugin/" + wiring_.task->id()));
  } catch (...) {
    log(Level::error, wiring_.task->id(),
        caught().message + " (the batch is the capsule's: it is replayed all the same)");
    std::erase(plugins, wiring_.task.get());
  }
  restore_snapshot_quietly(snapshot, run, plugins);
  transaction_.take_no_copies();
  replayed_ = [&] {
    restore_snapshot_quietly(snapshot, run, plugins);
    begin();
    return batch;
  };
  in_step_ = true;
  attributed(run, [&] { step(run, Until::gradients); });
  in_step_ = false;
  replayed_ = nullptr;
}

// An optimizer allocates its state in its first step, even if that update is skipped.
void TrainingLoop::skipped_update(Run& run) {
  in_step_ = true;
  attributed(run, [&] {
    const auto skip = std::exchange(run.skip_update, torch::ones({}, torch::dtype(torch::kFloat32).device(run.device)));
    step_optimizer(run);
    run.skip_update = skip;
  });
  in_step_ = false;
}

std::string TrainingLoop::moment(const Run& run) const {
  return in_step_       ? " in step " + std::to_string(run.step + 1)
         : run.step > 0 ? " after step " + std::to_string(run.step)
                        : "";
}

// Adds plugin and step to exceptions, and to LibTorch's warnings.
void TrainingLoop::attributed(const Run& run, const std::function<void()>& body) {
  const CallsWatched watched(called_, run, in_step_);
  Warnings warnings(warnings_, [&] {
    const auto* plugin = listening_now() != nullptr ? listening_now() : called_;
    return (plugin != nullptr ? plugin->id() : "trainer") + moment(run);
  });
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  try {
    body();
  } catch (...) {
    const std::string who = called_ != nullptr ? called_->id() : "trainer";
    // The user has to change the configuration, so name the place.
    const bool is_configured = caught().kind == Error::Kind::configuration && called_ != nullptr;
    rethrow_naming(who, moment(run), Error::Kind::training, is_configured ? wiring_.table_of(*called_).where : "");
  }
}

}  // namespace vernier
