#include "step_digits.h"

#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <map>

#include "run/state/snapshot.h"

namespace vernier {

namespace {

// Attached as the last listener. Rounds at random from the first micro-batch to the end of the update, and collects.
class Sampler final : public Plugin {
 public:
  Sampler(Run& run, bool has_gradients) : forward(*run.model), has_gradients_(has_gradients) { set_id("digits"); }

  void attach(Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) { begin_micro_batch(run); });
    bus.on(Event::LossReady, [this](Run&) {
      forward.end();
      naming_.reset();
    });
    bus.on(Event::GradientsReady, [this](Run& run) { look_at_gradients(run); });
    bus.on(Event::UpdateDone, [this](Run& run) { look_at_weights(run); });
  }

  void begin_sample(std::int64_t sample) {
    sample_ = sample;
    has_begun_ = false;
  }
  void leave() {
    naming_.reset();
    rounding_.reset();
  }

  ForwardDigits forward;
  std::map<std::string, RunningVariance> gradients, updates;
  std::vector<double> losses;
  std::int64_t skipped = 0, rounded = 0;

 private:
  std::uint64_t seed_of(const Run& run, bool is_update) const {
    constexpr std::uint64_t apart = 1000003;
    return static_cast<std::uint64_t>(run.seed) * apart + 2 * static_cast<std::uint64_t>(sample_) + (is_update ? 1 : 0);
  }

  void begin_micro_batch(const Run& run) {
    if (has_begun_) return;
    has_begun_ = true;
    before_.clear();
    for (const auto& parameter : run.parameters) before_[parameter.name] = parameter.best().detach().clone();
    rounding_.emplace(seed_of(run, false), &forward);
    forward.begin();
    naming_.emplace(forward.layers(), forward);
  }

  void look_at_gradients(Run& run) {
    const auto has_gradient = [](const Parameter& each) { return each.master.grad().defined(); };
    const bool sees = has_gradients_ && std::ranges::any_of(run.parameters, has_gradient);
    if (sees) run.gradients();
    rounded = rounding_ ? rounding_->rounded() : 0;
    rounding_.reset();
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (sees && gradient.defined()) {
        gradients[parameter.name].add(gradient.is_sparse() ? gradient.to_dense() : gradient);
      }
    }
    written_.storages.clear();
    rounding_.emplace(seed_of(run, true), &written_);
  }

  // A fused kernel counts as one operator, whose result is the weight.
  void look_at_weights(const Run& run) {
    rounding_.reset();
    losses.push_back(run.loss.item<double>());
    if (run.skip_update.defined() && run.skip_update.item<double>() != 0) {
      skipped += 1;
      return;
    }
    std::uint64_t place = 0;
    for (const auto& parameter : run.parameters) {
      const auto weight = parameter.best().detach();
      const auto& before = before_.at(parameter.name);
      auto after = weight;
      const bool is_wide = weight.scalar_type() == torch::kFloat64;
      ++place;
      if (!is_wide && written_.storages.count(parameter.master.storage().unsafeGetStorageImpl()) == 0) {
        after = torch::where(weight.eq(before), weight, with_random_last_bit(weight, seed_of(run, true), ~place));
      }
      if (!parameter.master.grad().defined() && after.equal(before)) continue;
      auto& update = updates[parameter.name];
      update.add(after.to(torch::kFloat64) - before.to(torch::kFloat64), weight.scalar_type());
    }
  }

  bool has_gradients_, has_begun_ = false;
  std::int64_t sample_ = 0;
  std::optional<RandomRounding> rounding_;
  std::optional<Intercept> naming_;
  WrittenStorages written_;
  Tensors before_;
};

class Silent final : public Plugin {};

State copy_of(const State& snapshot) {
  State copy;
  for (const auto& [name, tensor] : snapshot.tensors) copy.put(name, tensor.detach().clone());
  return copy;
}

std::vector<LayerDigits> layers_of(const Run& run, const Sampler& sampler) {
  const Layers layers(*run.model);
  const auto outputs = sampler.forward.outputs();
  std::vector<LayerDigits> all;
  for (const auto& name : layers.names()) {
    LayerDigits digits{name, {}, {}, {}};
    if (const auto found = outputs.find(name); found != outputs.end()) digits.output = found->second;
    std::vector<const RunningVariance*> gradients, updates;
    for (const auto& parameter : run.parameters) {
      const int index = layers.find(parameter.model);
      if (index < 0 || layers.names()[static_cast<std::size_t>(index)] != name) continue;
      if (const auto found = sampler.gradients.find(parameter.name); found != sampler.gradients.end()) {
        gradients.push_back(&found->second);
      }
      if (const auto found = sampler.updates.find(parameter.name); found != sampler.updates.end()) {
        updates.push_back(&found->second);
      }
    }
    digits.gradient = joint_digits(gradients);
    digits.update = joint_digits(updates);
    all.push_back(std::move(digits));
  }
  return all;
}

void sample_step(Prepared& prepared, const State& snapshot) {
  auto& run = prepared.run;
  restore_snapshot_quietly(snapshot, run, prepared.wiring->plugins());
  prepared.trainer.roles().calls.attributed_in_step(run, [&] { prepared.trainer.step().step(run); });
  run.notices.clear();
}

}  // namespace

void leave_out_measurements(Wiring& wiring) {
  static Silent silent;
  if (wiring.precision->id() == "precision/adaptive") {
    refuse(
        "precision/adaptive has not chosen a policy yet, and random last bits would change its choice; take a "
        "configuration with the policy that it chose, or without --steps a later --step");
  }
  for (const auto& callback : wiring.callbacks) {
    if (callback->id().starts_with("callback/recheck")) HostApi::replace(wiring.bus, *callback, silent);
  }
}

StepDigits digits_of_step(Prepared& prepared, std::int64_t samples, const std::atomic<int>& stop) {
  auto& run = prepared.run;
  auto& wiring = *prepared.wiring;
  if (!prepared.trainer.is_running()) HostApi::emit(wiring.bus, Event::RunBegin, run);
  StepDigits digits;
  digits.step = run.step + 1;
  digits.precision = wiring.precision->id();
  const auto snapshot = copy_of(run.control->snapshot());
  Sampler sampler(run, !wiring.optimizer->steps_in_backward());
  leave_out_measurements(wiring);
  prepared.trainer.step().transaction().undo_failed_steps(false);
  sample_step(prepared, snapshot);  // without noise: plugins keep from step to step what they do not save
  HostApi::attach(wiring.bus, sampler, false);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    sampler.begin_sample(sample);
    sample_step(prepared, snapshot);
    sampler.leave();
    if (stop != 0) throw Error("stopped by a signal");
  }
  digits.losses = sampler.losses;
  digits.loss_digits = significant_digits(sampler.losses);
  digits.layers = layers_of(run, sampler);
  digits.operators = sampler.forward.operators();
  digits.other_way = sampler.forward.other_way();
  digits.skipped = sampler.skipped;
  digits.rounded = sampler.rounded;
  for (const auto& each : digits.operators) {
    if (!digits.first && each.lost() >= markedly) digits.first = each;
    if (!digits.most || each.lost() > digits.most->lost()) digits.most = each;
  }
  return digits;
}

}  // namespace vernier
