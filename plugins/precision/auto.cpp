// auto: autocast in the dtype that this machine multiplies fast. That is bfloat16 on a GPU of compute capability 8.0 or
// a CPU with AMX or AMD's AVX512-BF16, float16 on a GPU of 7.0, which needs a loss scaler, and float32 elsewhere. The
// run reports the choice and its reason. Options: those of vernier/mixed_precision.h and vernier/precision_rules.h.
#include <vernier/draft/capture.h>
#include <vernier/hardware.h>
#include <vernier/mixed_precision.h>

class Auto final : public vernier::MixedPrecision, public vernier::draft::Capturable {
 public:
  explicit Auto(vernier::Options& options) : Auto(options, vernier::hardware_of(vernier::opened_device())) {}
  bool allows_capture() const override { return casts_alone(); }
  std::string describe() const override { return MixedPrecision::describe() + "; chosen for the " + hardware_; }

 private:
  Auto(vernier::Options& options, const vernier::Hardware& hardware)
      : MixedPrecision(options, hardware.fastest()), hardware_(hardware.name) {}
  std::string hardware_;
};

VERNIER_PLUGIN(Auto, "auto", "1.0.0")
