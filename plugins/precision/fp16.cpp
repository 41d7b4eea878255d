// fp16: forward under float16 autocast, weights in float32 (torch.autocast with dtype=torch.float16; Micikevicius et
// al., Mixed Precision Training, ICLR 2018). Small gradients underflow in float16, so it needs a loss scaler. No
// options.
#include <vernier/sdk.h>

class Fp16 final : public vernier::Precision {
 public:
  explicit Fp16(vernier::Options&) {}
  bool needs_scaler() const override { return true; }
  void prepare(vernier::Run& run) override { device_ = run.device.type(); }
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    const vernier::Autocast autocast(device_, torch::kFloat16);
    return body();
  }

 private:
  torch::DeviceType device_ = torch::kCPU;
};

VERNIER_PLUGIN(Fp16, "fp16", "1.0.0")
