// static: one scale for the whole run; an update with an inf or nan in its gradients is skipped.
//   scale = 65536         the loss is multiplied by it; a power of two, so that scaling is exact
//   measure_every = 100   steps between measurements of "underflow", the share of scaled gradients under 2^-14; 0: none
#include "scale_watch.h"

class StaticScaler final : public vernier::Scaler {
 public:
  explicit StaticScaler(vernier::Options& options)
      : value_(options.get("scale", 65536.0, "what the loss is multiplied by", vernier::above(0))), meter_(options) {}

  void prepare(vernier::Run& run) override {
    scale_ = torch::full({}, value_, torch::dtype(torch::kFloat32).device(run.device));
  }
  torch::Tensor scale(const torch::Tensor& loss) override { return loss * value_; }
  void unscale(vernier::Run& run) override {
    meter_.measure(run);
    vernier::unscale(run, scale_);
    run.metrics.set("scale", value_);
  }

 private:
  double value_;
  UnderflowMeter meter_;
  torch::Tensor scale_;
};

VERNIER_PLUGIN(StaticScaler, "static", "1.1.0")
