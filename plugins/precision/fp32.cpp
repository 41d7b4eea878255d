// fp32: keeps every tensor in the dtype of the model, float32 unless the task says otherwise, except where a rule
// lowers it. On a GPU LibTorch lets convolutions use TF32, as PyTorch does.
//   level = "O1"   O0 or O1, which are the same here, so that a command line may give one to every precision
// The other options are those of vernier/mixed_precision.h, without rounding, and of vernier/precision_rules.h.
#include <vernier/draft/capture.h>
#include <vernier/mixed_precision.h>

class Fp32 final : public vernier::MixedPrecision, public vernier::draft::Capturable {
 public:
  explicit Fp32(vernier::Options& options) : MixedPrecision(options, torch::kFloat, Levels::float32) {}
  bool allows_capture() const override { return casts_alone(); }
};

VERNIER_PLUGIN(Fp32, "fp32", "1.1.0")
