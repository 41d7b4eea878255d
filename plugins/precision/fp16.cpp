// fp16: runs forward under float16 autocast (torch.autocast with dtype=torch.float16). Weights are in float32 or, at
// the levels O2 and O3, in float16. Small gradients underflow in float16, so it needs a loss scaler. Source:
// Micikevicius et al., Mixed Precision Training, ICLR 2018. Options: those of vernier/mixed_precision.h and
// vernier/precision_rules.h.
#include <vernier/draft/capture.h>
#include <vernier/mixed_precision.h>

class Fp16 final : public vernier::MixedPrecision, public vernier::draft::Capturable {
 public:
  explicit Fp16(vernier::Options& options) : MixedPrecision(options, torch::kHalf) {}
  bool allows_capture() const override { return casts_alone(); }
};

VERNIER_PLUGIN(Fp16, "fp16", "1.1.0")
