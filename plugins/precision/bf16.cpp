// bf16: forward under bfloat16 autocast (torch.autocast with dtype=torch.bfloat16), weights in float32 or, at the levels
// O2 and O3, in bfloat16. bfloat16 has float32's range, so it needs no loss scaler. With LibTorch's own attention
// (attention, below) it equals PyTorch bit for bit at O1.
// Options: those of vernier/mixed_precision.h and vernier/precision_rules.h.
#include <vernier/mixed_precision.h>

class Bf16 final : public vernier::MixedPrecision {
 public:
  explicit Bf16(vernier::Options& options) : MixedPrecision(options, torch::kBFloat16) {}
};

VERNIER_PLUGIN(Bf16, "bf16", "1.1.0")
