// bf16: forward under bfloat16 autocast, weights and gradients in float32 (torch.autocast with dtype=torch.bfloat16).
// bfloat16 has float32's range, so it needs no loss scaler.
// No options.
#include <vernier/sdk.h>

class Bf16 final : public vernier::Precision {
 public:
  explicit Bf16(vernier::Options&) {}
  void prepare(vernier::Run& run) override { device_ = run.device.type(); }
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    const vernier::Autocast autocast(device_, torch::kBFloat16);
    return body();
  }

 private:
  torch::DeviceType device_ = torch::kCPU;
};

VERNIER_PLUGIN(Bf16, "bf16", "1.0.0")
