// my_name: computes forward and backward under autocast in a 16-bit dtype.
// It does what torch.autocast does. The weights stay in float32.
//   dtype = "bf16"   or "fp16", which needs a loss scaler ([scaler] use = "dynamic")
//
// This file is a complete plugin. Replace its rule with your own. A policy with rules for single layers may derive from
// vernier::MixedPrecision instead.
#include <vernier/autocast.h>
#include <vernier/sdk.h>

class MyName final : public vernier::Precision {
 public:
  // Reads the options and does nothing else. `vernier plugins precision/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : name_(options.choose("dtype", "bf16", {"bf16", "fp16"}, "what autocast computes in")),
        dtype_(name_ == "bf16" ? torch::kBFloat16 : torch::kHalf) {}

  bool needs_scaler() const override { return dtype_ == torch::kHalf; }  // small gradients underflow in float16
  std::string describe() const override { return name_ + " autocast, float32 weights"; }

  // Called once, when model and device are known. Throw vernier::Error here if something cannot work.
  void prepare(vernier::Run& run) override { device_ = run.device.type(); }

  // Called for each micro-batch. body computes the loss; backward comes later, outside of the guard, as in PyTorch.
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    const vernier::Autocast autocast(device_, dtype_);
    return body();
  }

 private:
  std::string name_;
  torch::ScalarType dtype_;
  torch::DeviceType device_ = torch::kCPU;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
