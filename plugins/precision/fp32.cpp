// fp32: every tensor in the dtype that the model has, float32 unless the task says otherwise, but for what a rule
// lowers. On a GPU LibTorch lets convolutions use TF32, as PyTorch does.
// Options: those of vernier/mixed_precision.h and vernier/precision_rules.h.
#include <vernier/mixed_precision.h>

class Fp32 final : public vernier::MixedPrecision {
 public:
  explicit Fp32(vernier::Options& options) : MixedPrecision(options, torch::kFloat32) {}
};

VERNIER_PLUGIN(Fp32, "fp32", "1.1.0")
