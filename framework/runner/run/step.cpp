#include "step.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <vernier/checksum.h>
#include <vernier/draft/capture.h>
#include <vernier/draft/model_parts.h>
#include <vernier/memory.h>

#include <cmath>

#include "common/config/config.h"

namespace vernier {

namespace {

// Either all micro-batches have a weight, or none.
std::optional<double> weight_of(const std::vector<Batch>& micro_batches) {
  if (micro_batches.empty() || !micro_batches[0].weight) return std::nullopt;
  double all = 0;
  for (const auto& micro_batch : micro_batches) all += micro_batch.weight.value_or(0);
  return all;
}

// A mean over the micro-batch, times its share of the batch: by weight, else by samples. Differentiable. Where several
// ranks compute each sample, their losses add up to the batch's.
torch::Tensor weighted(const Batch& part, const WholeBatch& whole, const torch::Tensor& mean) {
  const auto samples = static_cast<double>(part.samples);
  if (samples == whole.samples * whole.copies) return mean;
  if (!part.weight || !whole.weight) return mean * (samples / (whole.samples * whole.copies));
  return mean * (*part.weight / (*whole.weight * whole.copies));
}

void add_loss(TrainerRun& run, const Batch& micro_batch, const WholeBatch& whole) {
  const auto loss = run.micro_batch_loss.detach();  // lbfgs needs all digits of float64
  const auto part = weighted(micro_batch, whole, loss.to(c10::promoteTypes(loss.scalar_type(), torch::kFloat32)));
  run.loss = run.loss.defined() ? run.loss + part : part;
}

// Returns what the user can change for a micro-batch of several samples, or of one, that does not fit into memory.
std::string memory_remedy(const Wiring& wiring, const Batch& micro_batch) {
  if (micro_batch.samples > 1) {
    const auto remedy = wiring.accumulation->memory_remedy();
    return "; train in smaller micro-batches" + (remedy.empty() ? "" : ": " + remedy);
  }
  const auto remedy = wiring.task->memory_remedy();
  return "; a single sample is too much: " + (remedy.empty() ? "" : remedy + ", or ") +
         "raise [run] memory_limit where there is one";
}

void clear_results(TrainerRun& run) {
  for (auto& parameter : run.parameters) {
    parameter.model.mutable_grad().reset();
    parameter.master.mutable_grad().reset();
  }
  for (auto* result : {&run.loss, &run.found_inf, &run.skip_update, &run.grad_scale}) result->reset();
  run.norms = {};
}

// Returns the roles whose plugin is new in this step, and writes the notice `policy_changed` for each.
std::vector<std::string> report_swaps(const Wiring& wiring, TrainerRun& run) {
  std::vector<std::string> roles;
  for (const auto& [step, role, from, to] : wiring.swaps) {
    if (step != run.step) continue;
    run.notice("policy_changed", {{"role", role}, {"from", from}, {"to", to}}, to + " replaces " + from);
    roles.push_back(role);
  }
  return roles;
}

// Returns why forward and backward cannot be recorded, because a recording calls no plugin; "" if they can.
std::string why_not_recorded(const Wiring& wiring) {
  if (wiring.distributed->ranks() > 1) return "several ranks train together";
  if (wiring.optimizer->steps_in_backward()) return wiring.optimizer->id() + " updates in backward";
  std::string who;
  for (const auto* plugin : wiring.plugins()) {
    const bool is_called = plugin == wiring.task.get() || plugin == wiring.precision.get() ||
                           wiring.bus.listens(*plugin, Event::BatchReady) ||
                           wiring.bus.listens(*plugin, Event::LossReady);
    const auto* capturable = dynamic_cast<const draft::Capturable*>(plugin);
    const bool allows_it = capturable != nullptr && capturable->allows_capture();
    if (is_called && !allows_it) who += (who.empty() ? "" : ", ") + plugin->id();
  }
  return who.empty() ? "" : "these plugins do not allow it: " + who;
}

// Gives each rank other random numbers, as dropout needs, which follow from seed, step and rank; the same to all that
// compute the same samples. At its end the generators are as before, and so the same on all ranks.
auto random_of_rank(const Run& run, const Distributed& distributed) {
  std::optional<RandomState> common;  // it is taken of several ranks
  if (distributed.ranks() > 1) {
    common.emplace().take(run.device);
    const auto rank = draft::ModelParts::current() != nullptr ? 0 : distributed.rank();
    at::Philox4_32 mixed(run.seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(run.step));
    const std::uint64_t high = mixed(), seed = high << 32 | mixed();
    for (const auto device : {c10::Device(c10::kCPU), run.device}) {
      at::Generator(at::globalContext().defaultGenerator(device)).set_current_seed(seed);
    }
  }
  return c10::make_scope_exit([common, device = run.device] {
    if (common) common->restore(device);
  });
}

// Joins the flags of several passes: one that any of them found counts.
void join(torch::Tensor& flag, const torch::Tensor& before) {
  if (before.defined()) flag = flag.defined() ? torch::maximum(before, flag) : before;
}

// LibTorch stops at a limit on a CPU alone.
void refuse_over(std::int64_t limit, const Batch& micro_batch, c10::Device device) {
  if (limit == 0) return;
  const auto peak = allocated_memory(device).peak;
  TORCH_CHECK_WITH(OutOfMemoryError, peak <= limit, "a micro-batch of ", micro_batch.samples, " samples took ",
                   memory_text(peak), ", and the limit is ", memory_text(limit));
}

}  // namespace

// One update: roles are called, listeners observe (see the comment over Event).
void Step::step(TrainerRun& run, Until until) {
  begin_step(run);
  transaction_.mark(Stage::begin, run);  // until the update, a failure goes back to here
  run.learning_rate_factor = 1.0;
  batches_.skip_dropped(run);
  emit(Event::StepBegin, run, Part::data_wait);  // the clock charges what follows to data_wait
  run.batch = batches_.next(run);
  transaction_.mark(Stage::batch, run);
  compute_gradients(run, Tries::smaller);  // out of memory: back to Stage::batch, in smaller micro-batches
  if (until == Until::gradients) return;
  transaction_.gradients_computed(run);
  update_log_.look(run);
  emit(Event::GradientsReady, run, Part::update);  // listeners clip, measure, veto
  roles_.check_gradients(run, Event::GradientsReady);
  if (!optimizer_->divides_gradients()) run.gradients();
  transaction_.commit();   // no way back: weights change from here on
  optimizer_.step(run);    // changes nothing if run.skip_update is set
  precision_.commit(run);  // master weights into the model's
  share_weights(run);      // with the ranks that do not update them
  emit(Event::UpdateDone, run, Part::update);
  scaler_.update(run);
  finish_step(run);
  emit(Event::StepEnd, run, Part::trainer);
}

void Step::emit(Event event, TrainerRun& run, Part next) {
  const bool is_heard = has_listeners_[static_cast<std::size_t>(event)];
  if (is_heard && clock_.part() != Part::plugins) clock_.to(Part::plugins);
  HostApi::emit(roles_.wiring.bus, event, run);
  if (is_heard || clock_.part() != next) clock_.to(next);
}

void Step::note_plugins(TrainerRun& run) {
  const auto& wiring = roles_.wiring;
  update_log_.take_scale(run, scaler_.current());
  for (std::size_t i = 0; i < has_listeners_.size(); ++i) {
    has_listeners_[i] = std::ranges::any_of(
        wiring.plugins(), [&](const Plugin* plugin) { return wiring.bus.listens(*plugin, static_cast<Event>(i)); });
  }
  if (passes_) passes_->begin(why_not_recorded(wiring));
  if (!ranks_.are_several()) return;
  Facts alike = {{"keep_savepoints", snapshots_.asked()},
                 {"want_rerun", transaction_.is_rerun_wanted() ? "asked for" : "not asked for"}};
  for (const auto* plugin : wiring.plugins()) {
    const auto place = plugin->id().find('/');
    const auto role = plugin->id().substr(0, place);
    if (role == Monitor::role) continue;  // on rank 0 alone
    const auto& table = wiring.table_of(*plugin);
    alike["the plugin " + (role == Callback::role ? plugin->id() : role)] = c10::str(
        plugin->id(), " ", plugin->version(), " with options ", checksum_of(to_toml({{role, table}})).substr(0, 8));
  }
  ranks_.note_alike(alike);
}

void Step::begin_step(TrainerRun& run) {
  clock_.to(Part::trainer);
  update_log_.begin();
  run.batch = run.micro_batch = {};  // their memory is free for the next ones
  HostApi::clear(run.metrics);
  run.non_finite_reported = false;
  run.swapped = report_swaps(roles_.wiring, run);
  if (const auto from = snapshots_.rewound_from()) {
    run.notice("rewound", {{"from", *from}, {"to", run.step}},
               c10::str("the run went back from step ", *from, " to step ", run.step));
  }
}

void Step::compute_gradients(TrainerRun& run, Tries tries) {
  const NotOfListener asked;  // a listener may ask for the gradients
  const auto part = clock_.part();
  ranks_.begin_gradients();
  tries == Tries::smaller ? compute_micro_batches_that_fit(run) : compute_micro_batches(run, tries);
  if (tries == Tries::smaller && (micro_batches_ != 1 || batches_.drawn() != 1)) {
    run.metrics.set("micro_batches", static_cast<double>(micro_batches_));
    run.metrics.set("batch", ranks_.whole().samples);
  }
  all_reduce(run);
  roles_.check_backward(run);
  precision_.collect(run);
  run.moment = RunFacts::Moment::gradients;
  run.found_inf.reset();  // only the scaler sets them
  run.grad_scale.reset();
  scaler_.unscale(run);
  run.skip_update = run.found_inf.defined() ? run.found_inf.clone() : run.found_inf;  // a veto leaves found_inf alone
  if (part != Part::trainer) clock_.to(part);  // in a step, GradientsReady ends the time of backward
}

// However many micro-batches there are, their gradients add up to those of the whole batch's mean.
void Step::compute_micro_batches(TrainerRun& run, Tries tries) {
  const auto random = random_of_rank(run, *roles_.wiring.distributed);
  clear_results(run);
  auto micro_batches = accumulation_.split(run);
  task_.weigh(micro_batches);
  run.batch.weight = weight_of(micro_batches);
  run.micro_batches = std::ssize(micro_batches);
  if (tries == Tries::smaller) micro_batches_ = run.micro_batches;  // a rerun is not a step
  const auto computed = std::ranges::count_if(micro_batches, [](const Batch& one) { return one.weight != 0; });
  const auto sums = ranks_.weigh(run, run.batch, computed);
  for (const Batch& micro_batch : micro_batches) {
    if (micro_batch.weight == 0) continue;
    const auto limit = run.device.is_cpu() ? 0 : memory_limit(run.device);
    if (limit > 0) reset_peak_memory(run.device);
    run.micro_batch = micro_batch.to(run.device);
    emit(Event::BatchReady, run, Part::forward);
    const auto forward = [&] {
      auto loss = precision_.forward(run, [&] { return task_.loss(run); });
      if (tries == Tries::smaller) update_log_.see_forward(precision_.keep_dtype());  // a rerun is not a step
      return loss;
    };
    run.micro_batch_loss = tries == Tries::smaller && passes_ ? passes_->loss(run, forward) : forward();
    emit(Event::LossReady, run, Part::backward);
    const auto& whole = ranks_.whole();  // waits for other ranks
    add_loss(run, micro_batch, whole);
    task_.backward(scaler_.scale(weighted(micro_batch, whole, run.micro_batch_loss), run.device), run);
    run.micro_batch_loss.reset();
    emit(Event::BackwardDone, run, Part::backward);
    refuse_over(limit, run.micro_batch, run.device);
  }
  accumulation_.check_weight(ranks_.whole());
}

// A batch that runs out of memory is tried again in smaller micro-batches, from the same state. The other ranks wait.
void Step::compute_micro_batches_that_fit(TrainerRun& run) {
  for (;;) {
    std::string trouble;  // this rank's trouble
    const Plugin* culprit = nullptr;
    try {
      return compute_micro_batches(run, Tries::smaller);
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      trouble = caught().message;
      culprit = calls_.called();
    }
    run.micro_batch_loss.reset();
    const auto failed = run.micro_batch;
    const bool can_retry = transaction_.is_rerun_wanted();
    if (can_retry) transaction_.roll_back(Stage::batch, run);
    run.micro_batch = failed;
    if (!can_retry || !accumulation_->shrink(run)) {
      const auto remedy = memory_remedy(roles_.wiring, failed);
      calls_.note(culprit);
      throw Error(trouble + remedy);
    }
    if (passes_) passes_->forget();
    if (!run.device.is_cpu()) at::accelerator::emptyCache();
  }
}

// Makes gradients and loss those of the whole batch, if this rank has computed those of its share.
void Step::all_reduce(TrainerRun& run) {
  if (!ranks_.are_several()) return;
  const auto part = clock_.to(Part::communication);
  ranks_.all_reduce(
      run, {ending_.flag(), ending_.is_out_of_time(), clock_.seconds(Part::forward) + clock_.seconds(Part::backward)});
  clock_.to(part);
}

// Sends the weights that each rank has updated to the other ranks.
void Step::share_weights(TrainerRun& run) {
  if (!roles_.owners.are_sharded()) return;
  const auto part = clock_.to(Part::communication);
  roles_.owners.share_weights(run, Owners::Weights::trained);
  clock_.to(part);
}

void Step::finish_step(TrainerRun& run) {
  snapshots_.note_rewind(std::nullopt);
  run.grad_scale.reset();  // the optimizer has divided, in memory or not
  run.batches_drawn += batches_.drawn();
  const auto& whole = ranks_.whole();
  run.samples += std::llround(whole.samples);
  run.tokens += whole.tokens;
  ranks_.end_step(run);
  update_log_.count(run, scaler_.current());
  clock_.show(run.metrics, run.device.is_cpu());
  run.step += 1;  // callbacks after the update see the new count
  plan_.count_again(run);
  run.validates = run.validates || plan_.validates_now(run);
}

torch::Tensor Step::recompute(TrainerRun& run) {
  const auto loss = run.loss, found_inf = run.found_inf, skip_update = run.skip_update;
  const auto as = calls_.as(calls_.called());
  const at::AutoGradMode records(true);  // optimizers work without
  precision_.commit(run);                // the optimizer may have moved `master`, and forward reads `model`
  compute_gradients(run, Tries::once);
  run.gradients();
  join(run.found_inf, found_inf);
  join(run.skip_update, skip_update);
  return std::exchange(run.loss, loss);
}

}  // namespace vernier
