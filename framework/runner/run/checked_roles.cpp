#include "checked_roles.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>

#include "advice/precision_advice.h"
#include "core/step_results.h"
#include "cpu/backward.h"

namespace vernier {

namespace {

// Throws Error if a strategy loses samples: it would train on something else than the user's batch, without a word.
void refuse_half_a_batch(const std::vector<Batch>& micro_batches, const Batch& batch) {
  std::int64_t samples = 0;
  for (const auto& micro_batch : micro_batches) {
    samples += micro_batch.samples;
    if (micro_batch.samples > 0 && micro_batch.tensors.empty() == batch.tensors.empty()) continue;
    throw Error(c10::str("it split a batch of ", batch.samples, " samples, and a micro-batch has ", micro_batch.samples,
                         " samples and ", micro_batch.tensors.size(), " tensors; leave out empty micro-batches"));
  }
  if (samples == batch.samples) return;
  throw Error(c10::str("it split a batch of ", batch.samples, " samples into ", samples));
}

void refuse_wrong_weight(const Batch& micro_batch) {
  const auto& weight = micro_batch.weight;
  if (!weight || (std::isfinite(*weight) && *weight >= 0)) return;
  throw Error(c10::str("the weight of a micro-batch is ", *weight, ", and must be at least 0"), Error::Kind::plugin);
}

// Refuses weights on a part of the micro-batches: those of the others are unknown.
void refuse_some_weights(const std::vector<Batch>& micro_batches, const char* source) {
  const auto count = std::ranges::count_if(micro_batches, [](const Batch& each) { return each.weight.has_value(); });
  if (count == 0 || count == std::ssize(micro_batches)) return;
  throw Error(c10::str(source, " gave ", count, " of ", micro_batches.size(),
                       " micro-batches a weight; give each of them one, or none"),
              Error::Kind::plugin);
}

// The dtype in which a product of weights would be computed now: autocast's, whoever has switched it on, or that of the
// weights, of which one with 16 bits decides.
c10::ScalarType dtype_in_force(const Run& run) {
  const auto device = run.device.type();
  if (at::autocast::is_autocast_enabled(device)) return at::autocast::get_autocast_dtype(device);
  for (const auto& each : run.parameters) {
    if (is_16_bit(each.model.scalar_type())) return each.model.scalar_type();
  }
  return run.parameters.empty() ? c10::kFloat : run.parameters.front().model.scalar_type();
}

std::int64_t at_least_one(const char* name, std::int64_t answer) {
  if (answer >= 1) return answer;
  throw Error(c10::str("its ", name, " is ", answer, ", and must be at least 1"), Error::Kind::plugin);
}

}  // namespace

Batch CheckedTask::next() const {
  auto batch = (*this)->next();
  refuse_other_samples(batch);
  return batch;
}

std::int64_t CheckedTask::batches_per_epoch() const {
  return at_least_one("batches_per_epoch", (*this)->batches_per_epoch());
}

void CheckedTask::weigh(std::vector<Batch>& micro_batches) const {
  for (auto& micro_batch : micro_batches) {
    if (micro_batch.weight) continue;
    micro_batch.weight = (*this)->weight_of(micro_batch);
    refuse_wrong_weight(micro_batch);
  }
  refuse_some_weights(micro_batches, "its weight_of()");
}

torch::Tensor CheckedTask::loss(const TrainerRun& run) const {
  const StepNumbers before(run, get());
  auto loss = (*this)->loss(run.micro_batch);
  refuse_wrong_loss(loss, run.device, LossFrom::task);
  before.refuse_wrong(Event::BatchReady, run);
  return loss;
}

void CheckedTask::backward(const torch::Tensor& loss, const Run& run) const {
  note();
  vernier::backward(loss);
  separate_gradients(run.parameters);
}

torch::Tensor CheckedPrecision::forward(const std::function<torch::Tensor()>& body) const {
  return (*this)->forward([&] {
    auto loss = body();
    note();
    return loss;
  });
}

bool CheckedPrecision::keep_dtype() const {
  note();
  seen_ = get();
  dtype_ = forward_dtype_;
  return is_16_bit(dtype_) || get()->is_mixed();
}

torch::Tensor CheckedPrecision::forward(const TrainerRun& run, const std::function<torch::Tensor()>& body) const {
  const StepNumbers before(run, get());
  torch::Tensor given;
  auto loss = forward([&] {
    forward_dtype_ = dtype_in_force(run);
    return given = body();
  });
  if (!loss.is_same(given)) refuse_wrong_loss(loss, run.device, LossFrom::precision);
  before.refuse_wrong(Event::BatchReady, run);
  return loss;
}

torch::Tensor CheckedScaler::scale(const torch::Tensor& loss, c10::Device device) const {
  auto scaled = (*this)->scale(loss);
  refuse_wrong_loss(scaled, device, LossFrom::scaler);
  return scaled;
}

void CheckedPrecision::collect(TrainerRun& run) const {
  const StepNumbers by_precision(run, get());
  (*this)->collect(run);
}

void CheckedPrecision::commit(TrainerRun& run) const {
  const StepNumbers by_precision(run, get());
  (*this)->commit(run);
}

void CheckedScaler::unscale(TrainerRun& run) const {
  const StepNumbers by_scaler(run, get());
  (*this)->unscale(run);
  refuse_wrong_scale(run);
}

void CheckedScaler::update(TrainerRun& run) const {
  const StepNumbers by_scaler(run, get());
  (*this)->update(run);
}

Scaler::Current CheckedScaler::current() const {
  note();
  auto now = get()->current();
  for (const auto& [name, tensor] : {std::pair{"scale", now.scale}, {"growth_tracker", now.growth_tracker}}) {
    if (!tensor.defined() || tensor.numel() == 1) continue;
    throw Error(c10::str("the ", name, " of its current() has the shape ", tensor.sizes(), ", and must be one number"),
                Error::Kind::plugin);
  }
  return now;
}

std::vector<Batch> CheckedAccumulation::split(const TrainerRun& run) const {
  if (run.batch.samples == 0) return {};
  const StepNumbers before(run, get());
  auto micro_batches = (*this)->split(run.batch);
  before.refuse_wrong(Event::StepBegin, run);
  refuse_half_a_batch(micro_batches, run.batch);
  for (const auto& micro_batch : micro_batches) refuse_wrong_weight(micro_batch);
  refuse_some_weights(micro_batches, "its split()");
  return micro_batches;
}

std::int64_t CheckedAccumulation::batches_per_update(std::int64_t step, std::int64_t epoch,
                                                     std::int64_t samples) const {
  return at_least_one("batches_per_update", (*this)->batches_per_update(step, epoch, samples));
}

void CheckedAccumulation::check_weight(const WholeBatch& whole) const {
  if (!whole.weight || *whole.weight > 0) return;
  note();
  throw Error("nothing in the batch has a weight: its samples are all padding");
}

void CheckedOptimizer::step(TrainerRun& run) const {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> put_aside;  // masters of other ranks' parameters, and gradients
  for (auto& parameter : run.parameters) {
    if (parameter.owned || !parameter.master.grad().defined()) continue;
    put_aside.emplace_back(parameter.master, parameter.master.grad());
    parameter.master.mutable_grad().reset();
  }
  const auto put_back = c10::make_scope_exit([&] {
    for (auto& [master, gradient] : put_aside) master.mutable_grad() = gradient;
  });
  const StepNumbers before(run, get());
  (*this)->step(run);
  before.refuse_wrong(Event::GradientsReady, run);
  run.moment = RunFacts::Moment::other;
}

// A loss may have a graph of weights that are not the model's, which nothing trains.
void Roles::check_backward(const TrainerRun& run) {
  const auto has_gradient = [](const Parameter& parameter) { return parameter.model.grad().defined(); };
  const bool is_empty = std::ranges::none_of(run.parameters, has_gradient) && run.batch.samples > 0;
  if (is_empty && !wiring.optimizer->steps_in_backward()) {
    calls.note(wiring.task.get());
    throw Error("its loss has no gradient: it does not depend on run.model's parameters");
  }
  check_gradients(run, Event::BackwardDone);
}

void Roles::check_gradients(const TrainerRun& run, Event event) {
  const bool is_of_backward = event == Event::BackwardDone;
  const auto wrong = wrong_gradient(run.parameters, is_of_backward ? &Parameter::model : &Parameter::master);
  if (!wrong) return;
  std::vector<const Plugin*> makers;
  std::string ids;
  for (const auto* plugin : wiring.plugins()) {
    const bool is_role = !is_of_backward && (plugin == wiring.precision.get() || plugin == wiring.scaler.get());
    if (!wrong->is_dense || !(is_role || wiring.bus.listens(*plugin, event))) continue;
    makers.push_back(plugin);
    ids += (ids.empty() ? "" : " or ") + plugin->id();
  }
  calls.note(makers.size() == 1 ? makers.front() : makers.empty() ? wiring.task.get() : nullptr);
  throw Error(wrong->text + (makers.size() > 1 ? "; it was made by " + ids : ""));
}

}  // namespace vernier
