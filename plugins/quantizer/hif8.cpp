// hif8: HiFloat8, 8 bits whose fraction is shorter the farther a number is from 1. Ties are rounded away from zero.
// Source: arXiv 2409.16626. Numbers have no scale, and what is beyond 32768 becomes that.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class HiF8 final : public vernier::Quantizer {
 public:
  explicit HiF8(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.clamp(-32768, 32768);
    const auto exponent = std::get<1>(at::frexp(x)).sub(1), far = exponent.abs();  // |x| is in [1, 2) times 2^exponent
    const auto bits = 3 - far.gt(3).to(at::kInt) - far.gt(7).to(at::kInt) - far.gt(15).to(at::kInt);
    const auto step = (exponent.clamp_min(-22) - bits).to(at::kFloat).exp2();
    return {x.abs().div(step).add(0.5).floor().mul(step).mul(x.sign())};
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }
};

VERNIER_PLUGIN(HiF8, "hif8", "1.0.0")
