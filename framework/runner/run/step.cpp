#include "step.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/plugin_calls.h"
#include "core/step_results.h"
#include "wiring/config.h"

namespace vernier {

namespace {

// Throws Error if a strategy loses samples: it would train on something else than the user's batch, without a word.
void refuse_half_a_batch(const std::vector<Batch>& micro_batches, const Batch& batch) {
  std::int64_t samples = 0;
  for (const auto& micro_batch : micro_batches) samples += micro_batch.samples;
  if (samples == batch.samples && (samples == 0 || !micro_batches.empty())) return;
  throw Error(c10::str("it split a batch of ", batch.samples, " samples into ", samples));
}

// Weighs micro-batches by the task, if it does so and the accumulation has not. Throws Error for a weight that is not
// one; the caller is then the one who gave it.
void weigh(std::vector<Batch>& micro_batches, const Role<Accumulation>& accumulation, const Role<Task>& task) {
  for (auto& micro_batch : micro_batches) {
    const bool is_given = micro_batch.weight.has_value();
    if (!is_given) micro_batch.weight = task->weight_of(micro_batch);
    if (!micro_batch.weight || (std::isfinite(*micro_batch.weight) && *micro_batch.weight >= 0)) continue;
    const auto text = c10::str("the weight of a micro-batch is ", *micro_batch.weight, ", and must be at least 0");
    (void)(is_given ? accumulation->gathers()
                    : task->batches_per_epoch() > 0);  // calls the one that gave the weight, which the error names
    throw Error(text, Error::Kind::plugin);
  }
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

void add_loss(TrainerRun& run, const Batch& micro_batch, const WholeBatch& whole) {
  const auto loss = run.micro_batch_loss.detach();  // lbfgs needs all digits of float64
  const auto part = weighted(micro_batch, whole, loss.to(c10::promoteTypes(loss.scalar_type(), torch::kFloat32)));
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

// Joins the flags of several passes: one that any of them found counts.
void join(torch::Tensor& flag, const torch::Tensor& before) {
  if (before.defined()) flag = flag.defined() ? torch::maximum(before, flag) : before;
}

// The task made the graph: an error in its backward pass is the task's.
void backward(Calls& calls, const Plugin* task, const torch::Tensor& loss) {
  calls.note(task);
  loss.backward();
}

// LibTorch stops at a limit on a CPU alone.
void refuse_too_much_memory(const Run& run) {
  const auto limit = run.device.is_cpu() ? 0 : memory_limit(run.device);
  if (limit == 0) return;
  const auto peak = allocated_memory(run.device).peak;
  TORCH_CHECK_WITH(OutOfMemoryError, peak <= limit, "a micro-batch of ", run.micro_batch.samples, " samples took ",
                   memory_text(peak), ", and the limit is ", memory_text(limit));
}

}  // namespace

// One update: roles are called, listeners observe (see the comment over Event).
void Step::step(TrainerRun& run, Until until) {
  begin_step(run);
  transaction_.mark(Stage::begin, run);  // until the update, a failure goes back to here
  run.learning_rate_factor = 1.0;
  skip_dropped_batches(run);
  emit(Event::StepBegin, run, Part::data_wait);  // the clock charges what follows to data_wait
  run.batch = next_batch(run);
  transaction_.mark(Stage::batch, run);
  compute_gradients(run, Tries::smaller);  // out of memory: back to Stage::batch, in smaller micro-batches
  if (until == Until::gradients) return;
  transaction_.gradients_computed(run);
  update_log_.look(run);
  emit(Event::GradientsReady, run, Part::update);  // listeners clip, measure, veto
  refuse_wrong_gradients(run, Event::GradientsReady);
  if (!optimizer_->divides_gradients()) run.gradients();
  transaction_.commit();    // no way back: weights change from here on
  step_optimizer(run);      // changes nothing if run.skip_update is set
  precision_->commit(run);  // master weights into the model's
  share_weights(run);       // with the ranks that do not update them
  emit(Event::UpdateDone, run, Part::update);
  scaler_->update(run);
  finish_step(run);
  emit(Event::StepEnd, run, Part::trainer);
}

void Step::emit(Event event, TrainerRun& run, Part next) {
  const bool is_heard = has_listeners_[static_cast<std::size_t>(event)];
  if (is_heard && clock_.part() != Part::plugins) clock_.to(Part::plugins);
  HostApi::emit(wiring_.bus, event, run);
  if (is_heard || clock_.part() != next) clock_.to(next);
}

void Step::note_listeners() {
  for (std::size_t i = 0; i < has_listeners_.size(); ++i) {
    has_listeners_[i] = std::ranges::any_of(
        wiring_.plugins(), [&](const Plugin* plugin) { return wiring_.bus.listens(*plugin, static_cast<Event>(i)); });
  }
  passes_.begin(parts_.make_graph, parts_.make_graph ? why_not_captured() : "");
  if (!ranks_.are_several()) return;
  Facts alike = {{"keep_savepoints", parts_.snapshots.asked()},
                 {"want_rerun", transaction_.is_rerun_wanted() ? "asked for" : "not asked for"}};
  for (const auto* plugin : wiring_.plugins()) {
    const auto place = plugin->id().find('/');
    const auto role = plugin->id().substr(0, place);
    if (role == Monitor::role) continue;  // on rank 0 alone
    const auto& table = wiring_.table_of(*plugin);
    alike["the plugin " + (role == Callback::role ? plugin->id() : role)] = c10::str(
        plugin->id(), " ", plugin->version(), " with options ", checksum_of(to_toml({{role, table}})).substr(0, 8));
  }
  ranks_.note_alike(alike);
}

// Why forward and backward cannot be recorded as a graph, which would call no plugin; "" if they can.
std::string Step::why_not_captured() const {
  if (ranks_.are_several()) return "several ranks train together";
  if (optimizer_->steps_in_backward()) return wiring_.optimizer->id() + " updates in backward";
  std::string who;
  for (const auto* plugin : wiring_.plugins()) {
    const bool is_called = plugin == wiring_.task.get() || plugin == wiring_.precision.get() ||
                           wiring_.bus.listens(*plugin, Event::BatchReady) ||
                           wiring_.bus.listens(*plugin, Event::LossReady);
    if (is_called && !plugin->allows_capture()) who += (who.empty() ? "" : ", ") + plugin->id();
  }
  return who.empty() ? "" : "these plugins do not allow it: " + who;
}

void Step::begin_step(TrainerRun& run) {
  clock_.to(Part::trainer);
  calls_.note(nullptr);
  run.batch = run.micro_batch = {};  // their memory is free for the next ones
  HostApi::clear(run.metrics);
  run.non_finite_reported = false;
  run.swapped = report_swaps(wiring_, run);
  if (const auto from = parts_.progress.rewound_from) {
    run.notice("rewound", {{"from", *from}, {"to", run.step}},
               c10::str("the run went back from step ", *from, " to step ", run.step));
  }
}

void Step::compute_gradients(TrainerRun& run, Tries tries) {
  const NotOfListener asked;  // where a listener asks for it
  const auto part = clock_.part();
  ranks_.begin_gradients();
  tries == Tries::smaller ? compute_micro_batches_that_fit(run) : compute_micro_batches(run, tries);
  all_reduce(run);
  refuse_loss_of_others(run);
  refuse_wrong_gradients(run, Event::BackwardDone);
  precision_->collect(run);
  run.moment = RunFacts::Moment::gradients;
  run.found_inf.reset();  // only the scaler sets them
  run.grad_scale.reset();
  scaler_->unscale(run);
  refuse_wrong_scale(run);
  run.skip_update = run.found_inf.defined() ? run.found_inf.clone() : run.found_inf;  // a veto leaves found_inf alone
  if (part != Part::trainer) clock_.to(part);  // in a step, GradientsReady ends the time of backward
}

// A loss may have a graph of weights that are not the model's, which nothing trains.
void Step::refuse_loss_of_others(const TrainerRun& run) {
  const auto has_gradient = [](const Parameter& parameter) { return parameter.model.grad().defined(); };
  if (std::ranges::any_of(run.parameters, has_gradient) || optimizer_->steps_in_backward() || run.batch.samples == 0)
    return;
  calls_.note(wiring_.task.get());
  throw Error("its loss has no gradient: it does not depend on run.model's parameters");
}

// Refuses a wrong gradient before anything is updated, in the name of the plugin that may have made it, or of several.
void Step::refuse_wrong_gradients(const TrainerRun& run, Event event) {
  const bool is_of_backward = event == Event::BackwardDone;
  const auto wrong = wrong_gradient(run.parameters, is_of_backward ? &Parameter::model : &Parameter::master);
  if (!wrong) return;
  std::vector<const Plugin*> makers;
  std::string ids;
  for (const auto* plugin : wiring_.plugins()) {
    const bool is_role = !is_of_backward && (plugin == wiring_.precision.get() || plugin == wiring_.scaler.get());
    if (!wrong->is_dense || !(is_role || wiring_.bus.listens(*plugin, event))) continue;
    makers.push_back(plugin);
    ids += (ids.empty() ? "" : " or ") + plugin->id();
  }
  calls_.note(makers.size() == 1 ? makers.front() : makers.empty() ? wiring_.task.get() : nullptr);
  throw Error(wrong->text + (makers.size() > 1 ? "; it was made by " + ids : ""));
}

// Makes gradients and loss those of the whole batch, if this rank has computed those of its share.
void Step::all_reduce(TrainerRun& run) {
  if (!ranks_.are_several()) return;
  const auto part = clock_.to(Part::communication);
  const auto as = calls_.as(wiring_.distributed.get());
  ranks_.all_reduce(
      run, {parts_.stop, parts_.is_out_of_time(), clock_.seconds(Part::forward) + clock_.seconds(Part::backward)});
  clock_.to(part);
}

// Waits for other ranks. An error here means that a rank is lost, so it is attributed to the role distributed.
const WholeBatch& Step::whole_batch() {
  const auto as = calls_.as(wiring_.distributed.get());
  return ranks_.whole();
}

// Returns the loss of run.micro_batch in the run's precision. Throws Error in the name of whoever gave a wrong one.
torch::Tensor Step::loss_of_micro_batch(TrainerRun& run) {
  const StepNumbers before(run);
  torch::Tensor of_task;
  auto loss = forward(calls_, precision_, [&] {
    const StepNumbers before_task(run);
    of_task = task_->loss(run.micro_batch);
    refuse_wrong_loss(of_task, run.device, LossFrom::task);
    before_task.refuse_wrong(Event::BatchReady, run);
    return of_task;
  });
  if (!loss.is_same(of_task)) refuse_wrong_loss(loss, run.device, LossFrom::precision);
  before.refuse_wrong(Event::BatchReady, run);
  return loss;
}

// However many micro-batches there are, their gradients add up to those of the whole batch's mean.
void Step::compute_micro_batches(TrainerRun& run, Tries tries) {
  const RandomOfRank random(run, *wiring_.distributed);
  for (auto& parameter : run.parameters) {
    parameter.model.mutable_grad().reset();
    parameter.master.mutable_grad().reset();
  }
  for (auto* result : {&run.loss, &run.found_inf, &run.skip_update, &run.grad_scale}) result->reset();
  run.norms = {};
  const StepNumbers numbers(run);
  auto micro_batches = run.batch.samples > 0 ? accumulation_->split(run.batch) : std::vector<Batch>{};
  numbers.refuse_wrong(Event::StepBegin, run);
  refuse_half_a_batch(micro_batches, run.batch);
  weigh(micro_batches, accumulation_, task_);
  run.batch.weight = weight_of(micro_batches);
  ranks_.weigh(run, run.batch);
  run.micro_batches = static_cast<std::int64_t>(micro_batches.size());
  for (const Batch& micro_batch : micro_batches) {
    if (micro_batch.weight == 0) continue;
    if (!run.device.is_cpu() && memory_limit(run.device) > 0) reset_peak_memory(run.device);
    run.micro_batch = micro_batch.to(run.device);
    emit(Event::BatchReady, run, Part::forward);
    const auto compute = [&] { return loss_of_micro_batch(run); };
    run.micro_batch_loss = tries == Tries::once ? compute() : passes_.loss(run, compute);
    emit(Event::LossReady, run, Part::backward);
    const auto& whole = whole_batch();
    add_loss(run, micro_batch, whole);
    const auto loss = scaler_->scale(weighted(micro_batch, whole, run.micro_batch_loss));
    refuse_wrong_loss(loss, run.device, LossFrom::scaler);
    backward(calls_, wiring_.task.get(), loss);
    run.micro_batch_loss.reset();
    emit(Event::BackwardDone, run, Part::backward);
    refuse_too_much_memory(run);
  }
  if (const auto weight = whole_batch().weight; weight && !(*weight > 0)) {
    calls_.note(wiring_.accumulation.get());
    throw Error("nothing in the batch has a weight: its samples are all padding");
  }
  if (run.micro_batches == 1 && gathered_ == 1) return;
  run.metrics.set("micro_batches", static_cast<double>(run.micro_batches));
  run.metrics.set("batch", ranks_.whole().samples);
}

// A batch that runs out of memory is tried again in smaller micro-batches, from the same state. The other ranks wait.
void Step::compute_micro_batches_that_fit(TrainerRun& run) {
  for (;;) {
    std::string trouble;  // of this rank
    const Plugin* culprit = nullptr;
    try {
      compute_micro_batches(run, Tries::smaller);
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      trouble = caught().message;
      culprit = calls_.called();
    }
    const bool fits = trouble.empty(), can_retry = transaction_.is_rerun_wanted();
    if (fits) return;
    run.micro_batch_loss.reset();
    const auto failed = run.micro_batch;
    if (can_retry) transaction_.roll_back(Stage::batch, run);
    run.micro_batch = failed;
    if (!can_retry || !accumulation_->shrink(run)) {
      const auto remedy = failed.samples > 1 ? smaller_by(*wiring_.accumulation) : less_by(*wiring_.task);
      calls_.note(culprit);
      throw Error(trouble + remedy);
    }
    passes_.forget();
    if (!run.device.is_cpu()) at::accelerator::emptyCache();
  }
}

void Step::step_optimizer(TrainerRun& run) {
  const OwnGradients own(run);
  const StepNumbers before(run);
  optimizer_->step(run);
  before.refuse_wrong(Event::GradientsReady, run);
  run.moment = RunFacts::Moment::other;
}

// Sends the weights that each rank has updated to the other ranks.
void Step::share_weights(TrainerRun& run) {
  if (!ranks_.are_sharded()) return;
  const auto part = clock_.to(Part::communication);
  const auto as = calls_.as(wiring_.distributed.get());
  ranks_.share_weights(run, Ranks::Weights::trained);
  clock_.to(part);
}

void Step::finish_step(TrainerRun& run) {
  parts_.progress.rewound_from.reset();
  run.grad_scale.reset();  // the optimizer has divided, in memory or not
  run.batches_drawn += gathered_;
  const auto& whole = ranks_.whole();
  run.samples += std::llround(whole.samples);
  run.tokens += whole.tokens;
  ranks_.name_slow_ranks(run);
  ranks_.end_step(run);
  auto& best = parts_.progress.best_loss;
  best = lesser_of(best, run.loss);
  update_log_.count(run, precision_->is_mixed());
  clock_.show(run.metrics, run.device.is_cpu());
  run.step += 1;  // what comes after the update counts it
  plan_again(parts_, run);
  run.validates = run.validates || parts_.validates_after_step(run);
}

void Step::skip_dropped_batches(TrainerRun& run) {
  while (parts_.snapshots.is_dropped(run.batches_drawn)) {
    task_->next();
    run.batches_drawn += 1;
    end_epoch(run);
  }
}

void Step::end_epoch(TrainerRun& run) {
  if (run.batches_drawn / task_->batches_per_epoch() <= run.epoch) return;  // less: a run resumed with more data
  HostApi::emit(wiring_.bus, Event::EpochEnd, run);
  run.epoch += 1;
}

Batch Step::next_batch(TrainerRun& run) {
  auto batch = draw_batch(run);
  clock_.to(Part::trainer);
  run.metrics.set_time("data_wait", clock_.seconds(Part::data_wait));
  return batch;
}

// Draws the batches of an update, which ends with an epoch.
Batch Step::draw_batch(TrainerRun& run) {
  run.batches = gathered_ = 1;
  if (replayed_) return replayed_();
  if (!accumulation_->gathers()) {
    auto batch = task_->next();
    refuse_other_samples(batch);
    auto& most = parts_.progress.samples_of_batch;
    if (!batch.is_share) most = std::max(most.value_or(0), batch.samples);
    return ranks_.share_of(std::move(batch));
  }
  const auto samples = samples_of_batch(run);
  const auto wanted = accumulation_->batches_per_update(run.step, run.epoch, samples);
  if (wanted < 1)
    throw Error(c10::str("its batches_per_update is ", wanted, ", and must be at least 1"), Error::Kind::plugin);
  std::vector<Batch> batches;
  auto next = run.batches_drawn;
  do {
    auto batch = task_->next();
    refuse_other_samples(batch);
    if (!parts_.snapshots.is_dropped(next)) batches.push_back(ranks_.share_of(std::move(batch)));
    next += 1;
  } while (next % task_->batches_per_epoch() != 0 && static_cast<std::int64_t>(batches.size()) < wanted);
  gathered_ = next - run.batches_drawn;
  run.batches = static_cast<std::int64_t>(batches.size());
  return batches.size() == 1 ? std::move(batches.front()) : task_->concatenated(batches);
}

// The first batch is a whole one.
std::int64_t Step::samples_of_batch(TrainerRun& run) {
  auto& known = parts_.progress.samples_of_batch;
  if (known) return *known;
  Scope scope;
  scope.plugins = {wiring_.task.get()};
  Savepoint before;
  before.take(run, scope);
  const auto batch = task_->next();
  refuse_other_samples(batch);
  before.restore(run);
  ranks_.begin_gradients();
  ranks_.weigh(run, batch);
  known = batch.is_share ? std::llround(ranks_.whole().samples) : batch.samples;
  ranks_.begin_gradients();
  return *known;
}

torch::Tensor Step::recompute(TrainerRun& run) {
  const auto loss = run.loss, found_inf = run.found_inf, skip_update = run.skip_update;
  const auto as = calls_.as(calls_.called());
  precision_->commit(run);  // the optimizer may have moved `master`, and forward reads `model`
  compute_gradients(run, Tries::once);
  run.gradients();
  join(run.found_inf, found_inf);
  join(run.skip_update, skip_update);
  return std::exchange(run.loss, loss);
}

void plan_again(Parts& parts, TrainerRun& run) {
  const auto& [epochs, samples, first] = parts.plan;
  if (epochs == 0 || !parts.accumulation->gathers()) return;
  auto& adapts = parts.progress.adapts;
  adapts = adapts || parts.accumulation->batches_per_update(0, 0, samples) != first;
  if (!adapts) return;
  const auto of_epoch = parts.wiring.task->batches_per_epoch(), left = epochs * of_epoch - run.batches_drawn;
  const auto wanted = parts.accumulation->batches_per_update(run.step, run.batches_drawn / of_epoch, samples);
  const auto updates = [&](std::int64_t batches) { return (batches + wanted - 1) / std::max<std::int64_t>(wanted, 1); };
  run.steps = run.step + std::max<std::int64_t>(0, left / of_epoch * updates(of_epoch) + updates(left % of_epoch));
}

torch::Tensor forward(Calls& calls, const Role<Precision>& precision, const std::function<torch::Tensor()>& body) {
  auto* plugin = precision.operator->();
  return plugin->forward([&] {
    auto loss = body();
    calls.note(plugin);
    return loss;
  });
}

}  // namespace vernier
