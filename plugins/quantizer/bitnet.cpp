// bitnet: weights -1, 0 or 1 times the mean magnitude of the tensor, and other operands 8-bit integers with a scale for
// each row.
// Source: BitNet b1.58, arXiv 2402.17764.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class BitNet final : public vernier::Quantizer {
 public:
  explicit BitNet(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto& x = of.numbers;
    if (of.is_weight) {
      const auto scale = x.abs().mean().clamp_min(1e-5);
      return {x.div(scale).round().clamp(-1, 1).mul(scale)};
    }
    const auto scale = 127 / x.abs().amax(-1, /*keepdim=*/true).clamp_min(1e-5);
    return {x.mul(scale).round().clamp(-128, 127).div(scale)};
  }
  bool serves_both(bool is_weight) const override { return is_weight; }
  bool draws() const override { return false; }
};

VERNIER_PLUGIN(BitNet, "bitnet", "1.0.0")
