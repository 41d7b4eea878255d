// fp32: every tensor in the dtype that the model has, float32 unless the task says otherwise. On a GPU
// LibTorch lets convolutions use TF32, as PyTorch does. No options.
#include <vernier/sdk.h>

class Fp32 final : public vernier::Precision {
 public:
  explicit Fp32(vernier::Options&) {}
};

VERNIER_PLUGIN(Fp32, "fp32", "1.0.0")
