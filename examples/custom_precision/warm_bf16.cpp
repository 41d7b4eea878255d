// warm_bf16: float32 for the first steps, bfloat16 after.
//   warmup_steps = 100
#include <vernier/autocast.h>
#include <vernier/sdk.h>

class WarmBf16 final : public vernier::Precision {
 public:
  explicit WarmBf16(vernier::Options& options)
      : warmup_(options.get("warmup_steps", 100, "steps in float32 before bfloat16", vernier::at_least(0))) {}
  void prepare(vernier::Run& run) override { device_ = run.device.type(); }
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepBegin, [this](vernier::Run& run) { low_ = run.step >= warmup_; });
  }
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    const vernier::Autocast autocast(device_, torch::kBFloat16, low_);
    return body();
  }

 private:
  std::int64_t warmup_;
  torch::DeviceType device_ = torch::kCPU;
  bool low_ = false;
};

VERNIER_PLUGIN(WarmBf16, "warm_bf16", "1.0.0")
