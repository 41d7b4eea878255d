// bf16: forward under bfloat16 autocast, weights and gradients in float32 (torch.autocast with dtype=torch.bfloat16).
// bfloat16 has float32's range, so it needs no loss scaler. With attention = "fused" equal to PyTorch bit for bit.
// Options: those of vernier/mixed_precision.h.
#include <vernier/mixed_precision.h>

class Bf16 final : public vernier::MixedPrecision {
 public:
  explicit Bf16(vernier::Options& options) : MixedPrecision(options, torch::kBFloat16) {}
};

VERNIER_PLUGIN(Bf16, "bf16", "1.1.0")
