// sawb: 4-bit integers with one scale for the tensor, from its root mean square and its mean magnitude.
// Source: SAWB, arXiv 1807.06964, with the factors of 4 bits, as LUQ (arXiv 2112.10769) takes it for x and w.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class Sawb final : public vernier::Quantizer {
 public:
  explicit Sawb(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto& x = of.numbers;
    if (x.numel() == 0) return {x.clone()};
    const auto clip = x.square().mean().sqrt().mul(12.1) - x.abs().mean().mul(12.2);
    // Numbers of one magnitude have no clip above 0, and then the largest is the limit.
    const auto step = at::where(clip.gt(0), clip, x.abs().max()) / 8;
    return {at::where(step.eq(0), x, x.div(step).round().clamp(-8, 7).mul(step))};
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }
};

VERNIER_PLUGIN(Sawb, "sawb", "1.0.0")
