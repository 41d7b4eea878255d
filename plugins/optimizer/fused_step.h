// What the optimizer plugins share: a step of a vernier::FusedOptimizer at the run's learning rate, and the option
// `in_backward`. With it, each gradient is used and freed as soon as the backward pass of the batch's last micro-batch
// has completed it (FusedOptimizer::step_in_backward). docs/optimizers.md says what that costs.
#pragma once

#include <vernier/sdk.h>

#include <memory>
#include <utility>

class FusedStep {
 public:
  FusedStep(vernier::Options& options, double learning_rate)
      : learning_rate_(learning_rate),
        in_backward_(
            options.get("in_backward", false, "use and free each gradient in backward: less memory, no clipping")) {}

  bool is_in_backward() const { return in_backward_; }
  vernier::FusedOptimizer& optimizer() const { return *optimizer_; }  // after start()

  // Called in Plugin::attach.
  void attach(vernier::Bus& bus) {
    if (!in_backward_) return;
    bus.on(vernier::Event::StepBegin, [this](vernier::Run&) { samples_ = 0; });
    bus.on(vernier::Event::BatchReady, [this](vernier::Run& run) {
      samples_ += run.micro_batch.samples;
      set_rate(run);
      optimizer_->step_in_backward(samples_ == run.batch.samples);
    });
  }

  // Plugin::contradicts.
  vernier::Contradiction contradiction(const vernier::Plugin& other, const vernier::Bus& bus) const {
    if (!in_backward_) return {};
    const auto* scaler = dynamic_cast<const vernier::Scaler*>(&other);
    if (scaler != nullptr && scaler->scales()) {
      return {"in_backward", "updates weights before " + other.id() +
                                 " can see whether a gradient overflowed; use bf16 or fp32, which need no scaler"};
    }
    const bool may_need_gradients = dynamic_cast<const vernier::Accumulation*>(&other) != nullptr ||
                                    dynamic_cast<const vernier::Callback*>(&other) != nullptr;
    if (!may_need_gradients || !bus.listens(other, vernier::Event::GradientsReady)) return {};
    return {"in_backward", "frees each gradient as it is used, and " + other.id() +
                               " wants to see them all; leave one of the two out"};
  }

  // Called in Plugin::prepare. plugin: its name, for the message.
  void refuse_masters(const vernier::Run& run, const char* plugin) const {
    if (!in_backward_) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.master.is_same(parameter.model)) continue;
      throw vernier::Error(c10::str("optimizer/", plugin, ": in_backward updates the model's own weights, and the ",
                                    "precision keeps others for it (", parameter.name,
                                    "); choose one without masters, or leave in_backward out"),
                           vernier::Error::Kind::configuration);
    }
  }
  void start(std::unique_ptr<vernier::FusedOptimizer> optimizer) { optimizer_ = std::move(optimizer); }

  // Optimizer::step.
  void step(vernier::Run& run) {
    set_rate(run);
    if (!in_backward_) return optimizer_->step(run.skip_update, run.grad_scale);
    optimizer_->step_in_backward(false);
    optimizer_->step();  // of gradients that the last micro-batch did not compute
    optimizer_->zero_grad();
  }

 private:
  void set_rate(vernier::Run& run) {
    const double rate = learning_rate_ * run.learning_rate_factor;
    optimizer_->set_lr(rate);
    run.metrics.set("learning_rate", rate);
  }

  double learning_rate_;
  bool in_backward_;
  std::int64_t samples_ = 0;  // in this batch's micro-batches so far
  std::unique_ptr<vernier::FusedOptimizer> optimizer_;
};
