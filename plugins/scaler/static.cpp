// static: multiplies the loss by one scale for the whole run, and skips an update whose gradients have an inf or NaN.
//   scale = 65536         factor of the loss; a power of two scales exactly
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100   see scale_watch.h
#include <vernier/unscale.h>

#include <ATen/ops/full.h>

#include "scale_watch.h"

class StaticScaler final : public vernier::Scaler {
 public:
  explicit StaticScaler(vernier::Options& options)
      : value_(options.get("scale", 65536.0, "what the loss is multiplied by", vernier::between(0x1p-126, 0x1p127))),
        watch_(options) {
    remember("", watch_);
  }

  std::vector<vernier::MetricInfo> metrics() const override { return ScaleWatch::metrics(); }
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) { watch_.end_step(run, *this, value_); });
  }
  void prepare(vernier::Run& run) override {
    scale_ = torch::full({}, value_, torch::dtype(torch::kFloat).device(run.device));
    watch_.start(run, value_);
  }
  torch::Tensor scale(const torch::Tensor& loss) override { return loss * scale_; }
  void unscale(vernier::Run& run) override {
    watch_.begin(run, value_);
    vernier::unscale(run, scale_);
  }
  Current current() const override { return {.scale = scale_, .growth_tracker = {}}; }

 private:
  double value_;
  ScaleWatch watch_;
  torch::Tensor scale_;
};

VERNIER_PLUGIN(StaticScaler, "static", "1.1.0")
