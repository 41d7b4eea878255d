// quartet: MXFP4. A block's scale is a power of two from the standard deviation of its numbers. The gradient passes
// where a number is not cut off. The operands of y are rotated: rotate = {y = 32}. Source: Quartet, arXiv 2505.14669,
// with the factor of its code.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class Quartet final : public vernier::Quantizer {
 public:
  explicit Quartet(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.unflatten(-1, {-1, 32}), scale = scale_of(x);
    return {vernier::round_to(x / scale, vernier::tensor_format("e2m1")).mul(scale).flatten(-2)};
  }
  bool has_gradient() const override { return true; }
  at::Tensor gradient(const vernier::Operand& of, const at::Tensor& of_result) override {
    const auto x = of.numbers.unflatten(-1, {-1, 32});
    return of_result * x.div(scale_of(x)).abs().lt(6).flatten(-2);
  }
  std::int64_t multiple() const override { return 32; }
  bool draws() const override { return false; }

 private:
  static at::Tensor scale_of(const at::Tensor& x) {
    const auto deviation = (x - x.mean(-1, true)).square().mean(-1, true).sqrt();
    return deviation.mul(2.92247856 / 6).add(1e-8).log2().floor().exp2();
  }
};

VERNIER_PLUGIN(Quartet, "quartet", "1.0.0")
