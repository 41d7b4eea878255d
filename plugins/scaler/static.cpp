// static: multiplies the loss by one scale for the whole run, and skips an update whose gradients have an inf or NaN.
//   scale = 65536         factor of the loss; a power of two scales exactly
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100   see scale_watch.h
#include <ATen/ops/full.h>

#include "scale_watch.h"

class StaticScaler final : public WatchedScaler {
 public:
  explicit StaticScaler(vernier::Options& options)
      : WatchedScaler(options),
        value_(options.get("scale", 65536.0, "what the loss is multiplied by", vernier::between(0x1p-126, 0x1p127))) {}

  void prepare(vernier::Run& run) override {
    scale_ = torch::full({}, value_, torch::dtype(torch::kFloat).device(run.device));
    watch(run, value_);
  }
  void unscale(vernier::Run& run) override {
    WatchedScaler::unscale(run);
    run.metrics.set("scale", value_);  // the metric is not rounded to float32
  }
  Current current() const override { return {.scale = scale_, .growth_tracker = {}}; }

 private:
  double next() override { return value_; }

  double value_;
  torch::Tensor scale_;
};

VERNIER_PLUGIN(StaticScaler, "static", "1.1.0")
