#include "step_recorder.h"

#include <torch/nn/module.h>
#include <vernier/checksum.h>
#include <vernier/layers.h>

#include <algorithm>
#include <cmath>

#include "run/state/snapshot.h"

namespace vernier {

namespace {

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU, torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
}

Tensors weights_by_name(const Run& run) {
  Tensors all;
  for (const auto& parameter : run.parameters) all[parameter.name] = copy_of(parameter.best());
  return all;
}

State copy_of_state(const Run& run) {
  State state;
  for (const auto& [name, tensor] : run.control->snapshot().tensors) {
    state.put(name, tensor.detach().to(torch::Device(torch::kCPU), /*non_blocking=*/false, /*copy=*/true));
  }
  return state;
}

// The range of both tensors together.
void join(TensorRange& all, const TensorRange& more) {
  const auto finite = [](const TensorRange& range) {
    return static_cast<double>(range.elements - range.infs - range.nans);
  };
  const double count = finite(all) + finite(more);
  const double squares = finite(all) * all.rms * all.rms + finite(more) * more.rms * more.rms;
  all.rms = count > 0 ? std::sqrt(squares / count) : 0;
  all.amax = std::max(all.amax, more.amax);
  all.elements += more.elements;
  all.zeros += more.zeros;
  all.infs += more.infs;
  all.nans += more.nans;
  all.negative_infs += more.negative_infs;
}

}  // namespace

std::string StepView::digest() const {
  std::string all = batch + bits.loss;
  for (const auto* digests : {&bits.gradients, &bits.weights}) {
    for (const auto& [name, digits] : *digests) all += name + digits;
  }
  return checksum_of(all);
}

StepRecorder::StepRecorder(Looks looks) : looks_(std::move(looks)) {
  set_id("replay");
}

void StepRecorder::attach(Bus& bus) {
  bus.on(Event::StepBegin, [this](Run& run) {
    look_ = looks_(run.step + 1);
    has_begun_ = false;
  });
  bus.on(Event::BatchReady, [this](Run& run) { begin_micro_batch(run); });
  bus.on(Event::GradientsReady, [this](Run& run) { look_at_gradients(run); });
  bus.on(Event::StepEnd, [this](Run& run) { look_at_weights(run); });
}

void StepRecorder::begin_micro_batch(Run& run) {
  if (!has_begun_) {
    view_ = {};
    view_.step = run.step + 1;
    view_.batch = digest(run.batch);
    if (look_ == Look::capsule) {
      view_.capsule.step = view_.step;
      view_.capsule.batch = run.batch;
      view_.capsule.state = copy_of_state(run);
    }
    if (look_ == Look::layers) {
      before_ = weights_by_name(run);
      tracer_.emplace(*run.model);
    }
  }
  has_begun_ = true;
  if (tracer_) tracer_->begin_forward();
}

void StepRecorder::look_at_gradients(Run& run) {
  if (tracer_) tracer_->stop();
  view_.loss = run.loss.item<double>();
  view_.bits = fingerprint(run);
  if (look_ != Look::layers) return;
  view_.origin = origin_of(*tracer_, run);
  gradients_.clear();
  const auto has_gradient = [](const Parameter& each) { return each.master.grad().defined(); };
  if (std::ranges::any_of(run.parameters, has_gradient)) run.gradients();  // divides them, with the optimizer's bits
  for (const auto& parameter : run.parameters) {
    const auto& gradient = parameter.master.grad();
    if (gradient.defined()) gradients_[parameter.name] = copy_of(gradient.is_sparse() ? gradient.to_dense() : gradient);
  }
}

void StepRecorder::look_at_weights(const Run& run) {
  view_.is_skipped = run.skip_update.defined() && run.skip_update.item<double>() != 0;
  view_.bits.weights = digests_of_weights(run);
  view_.notices = run.notices;
  if (look_ == Look::capsule) view_.weights = weights_by_name(run);
  if (look_ == Look::layers) look_at_layers(run, weights_by_name(run));
  tracer_.reset();
}

void StepRecorder::look_at_layers(const Run& run, const Tensors& after) {
  const Layers layers(*run.model);
  for (const auto& name : layers.names()) view_.layers.push_back({name, {}, {}, {}, {}});
  for (const auto& output : tracer_->outputs()) {
    const auto found = std::ranges::find(view_.layers, output.layer, &LayerView::layer);
    if (found != view_.layers.end()) join(found->activation, output.range);
  }
  for (const auto& parameter : run.parameters) {
    const int index = layers.find(parameter.model);
    if (index < 0) continue;
    auto& view = view_.layers[static_cast<std::size_t>(index)];
    const auto& before = before_.at(parameter.name);
    join(view.weight, range_of(before));
    join(view.update, range_of(after.at(parameter.name) - before));
    if (const auto found = gradients_.find(parameter.name); found != gradients_.end()) {
      join(view.gradient, range_of(found->second));
    }
  }
}

}  // namespace vernier
