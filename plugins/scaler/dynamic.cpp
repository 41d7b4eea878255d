// dynamic: PyTorch's law (torch.amp.GradScaler): after a step with an inf or nan the update is skipped and the scale is
// multiplied by backoff_factor; after growth_interval steps in a row without one, by growth_factor.
//   init_scale = 65536
//   growth_factor = 2, backoff_factor = 0.5
//   growth_interval = 2000
#include <vernier/sdk.h>

#include <algorithm>

class DynamicScaler final : public vernier::Scaler {
 public:
  explicit DynamicScaler(vernier::Options& options)
      : options_{
            .init_scale = options.get("init_scale", 65536.0, "scale of the first step", vernier::above(0)),
            .growth_factor = options.get("growth_factor", 2.0, "for growing", vernier::above(1)),
            .backoff_factor = options.get("backoff_factor", 0.5, "for an inf or nan", vernier::between(1e-6, 0.999999)),
            .growth_interval = options.get("growth_interval", 2000, "steps without one until the scale grows",
                                           vernier::at_least(1))} {}

  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) { tell_change(run); });
  }
  void prepare(vernier::Run& run) override {
    scaler_.emplace(run.device, options_);
    told_ = options_.init_scale;
  }
  torch::Tensor scale(const torch::Tensor& loss) override { return scaler_->scale(loss); }
  void unscale(vernier::Run& run) override {
    run.metrics.set("scale", scaler_->scale_tensor().clone());  // of this step; update() changes it in place
    run.found_inf = scaler_->unscale_(run.gradients());
  }
  void update(vernier::Run&) override { scaler_->update(); }

  vernier::State save() const override { return scaler_->state_dict(); }
  void load(const vernier::State& state) override {
    // Scale and tracker go on; the factors are the TOML's, which may have been changed for the rest of the run.
    vernier::State merged = state;
    merged.put("growth_factor", options_.growth_factor);
    merged.put("backoff_factor", options_.backoff_factor);
    merged.put("growth_interval", options_.growth_interval);
    scaler_->load_state_dict(merged);
    told_ = scaler_->get_scale();
  }

 private:
  // Reading the scale is free on the CPU. On a GPU it would make the host wait, so there it is read when a skip has
  // become known, and every hundred steps.
  void tell_change(vernier::Run& run) {
    const auto is_skip = [](const vernier::Notice& notice) { return notice.name == "step_skipped"; };
    const bool look = run.device.is_cpu() || run.step % 100 == 0 || std::ranges::any_of(run.notices, is_skip);
    if (!look) return;
    const double now = scaler_->get_scale();
    if (now != told_) run.notice("scale_changed", {{"from", told_}, {"to", now}});
    told_ = now;
  }

  vernier::GradScalerOptions options_;
  std::optional<vernier::GradScaler> scaler_;
  double told_ = 0;
};

VERNIER_PLUGIN(DynamicScaler, "dynamic", "1.0.0")
