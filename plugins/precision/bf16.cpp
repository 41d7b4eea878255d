// bf16: runs forward under bfloat16 autocast (torch.autocast with dtype=torch.bfloat16). Weights are in float32 or, at
// the levels O2 and O3, in bfloat16. bfloat16 has the range of float32, so it needs no loss scaler. With LibTorch's own
// attention (the option below) it equals PyTorch bit for bit at O1. Options: those of vernier/mixed_precision.h and
// vernier/precision_rules.h.
#include <vernier/draft/capture.h>
#include <vernier/mixed_precision.h>

class Bf16 final : public vernier::MixedPrecision, public vernier::draft::Capturable {
 public:
  explicit Bf16(vernier::Options& options) : MixedPrecision(options, torch::kBFloat16) {}
  bool allows_capture() const override { return casts_alone(); }
};

VERNIER_PLUGIN(Bf16, "bf16", "1.1.0")
