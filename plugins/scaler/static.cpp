// static: one scale for the whole run; an update with an inf or nan in its gradients is skipped.
//   scale = 65536   the loss is multiplied by it; a power of two, so that scaling is exact
#include <vernier/sdk.h>

class StaticScaler final : public vernier::Scaler {
 public:
  explicit StaticScaler(vernier::Options& options)
      : value_(options.get("scale", 65536.0, "what the loss is multiplied by", vernier::above(0))) {}

  void prepare(vernier::Run& run) override {
    scale_ = torch::full({}, value_, torch::dtype(torch::kFloat32).device(run.device));
  }
  torch::Tensor scale(const torch::Tensor& loss) override { return loss * value_; }
  void unscale(vernier::Run& run) override {
    run.found_inf = vernier::unscale_gradients_(run.gradients(), scale_);
    run.metrics.set("scale", value_);
  }

 private:
  double value_;
  torch::Tensor scale_;
};

VERNIER_PLUGIN(StaticScaler, "static", "1.0.0")
