// my_name: multiplies the loss by a scale, so that small gradients survive float16.
// It halves the scale after each update that was skipped because a gradient was inf or NaN.
//   scale = 1024   the first scale; a power of two scales exactly
//
// This file is a complete plugin. Replace its rule with your own.
#include <ATen/ops/full.h>
#include <vernier/sdk.h>
#include <vernier/unscale.h>

class MyName final : public vernier::Scaler {
 public:
  // Reads the options and does nothing else. `vernier plugins scaler/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : first_(options.get("scale", 1024.0, "the first scale", vernier::between(1, 0x1p127))) {
    // The memory on which the next steps depend. With it a resumed run equals one that was never stopped, bit for bit.
    remember("scale", scale_);
  }

  // Called once, when model and device are known. Throw vernier::Error here if something cannot work.
  void prepare(vernier::Run& run) override {
    scale_ = torch::full({}, first_, torch::dtype(torch::kFloat).device(run.device));
  }

  // Called before backward, for each micro-batch.
  torch::Tensor scale(const torch::Tensor& loss) override { return loss * scale_; }

  // Called after backward: has the gradients divided by the scale, and sets run.found_inf and with it run.skip_update.
  void unscale(vernier::Run& run) override { vernier::unscale(run, scale_); }

  // Called after the update. found_inf is 0 or 1. It stays on its device: an item() would make the host wait for it.
  void update(vernier::Run& run) override { scale_ = scale_ * (1 - 0.5 * run.found_inf); }

  // The scale of the next loss, for the statistics: [AMP Stats], summary.json.
  Current current() const override { return {.scale = scale_, .growth_tracker = {}}; }

 private:
  double first_;
  torch::Tensor scale_;  // float32, 0-dim, on the device
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
