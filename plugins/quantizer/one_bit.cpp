// one_bit: the sign of each number times the mean magnitude of the tensor, for [distributed] message with its error
// feedback. 0 counts as above 0.
// Source: 1-bit Adam, arXiv 2102.02888. There the sum of the ranks is rounded once more, and the variance of Adam is
// kept after a warm-up.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class OneBit final : public vernier::Quantizer {
 public:
  explicit OneBit(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto& x = of.numbers;
    const auto mean = x.abs().mean();
    return {at::where(x.lt(0), -mean, mean)};
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }
};

VERNIER_PLUGIN(OneBit, "one_bit", "1.0.0")
