// hif4: HiFloat4. A block of 64 numbers has a scale of 8 bits, one bit for every 8 numbers, and one for every 4.
// Source: arXiv 2602.11287. Public emulations differ in how they round the bits of 8 numbers; here they are not
// rounded.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class HiF4 final : public vernier::Quantizer {
 public:
  explicit HiF4(vernier::Options&) {}
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.unflatten(-1, {-1, 8, 2, 4});
    const auto most = x.abs().amax({-1}, true), of_eight = most.amax({-2}, true), of_all = of_eight.amax({-3}, true);
    const auto scale = e6m2(bf16(of_all * bf16(at::full({}, 1.0 / 7))));
    const auto inverse = bf16(scale.reciprocal());
    const auto eight = of_eight.mul(inverse).ge(4).to(at::kFloat).add(1);  // 1 or 2
    const auto four = most.mul(inverse).div(eight).ge(2).to(at::kFloat).add(1);
    const auto level = x.abs().mul(inverse).div(eight * four).mul(4).add(0.5).floor().div(4).clamp_max(1.75);
    return {level.mul(eight).mul(four).mul(scale).mul(x.sign()).flatten(-4)};
  }
  std::int64_t multiple() const override { return 64; }
  bool draws() const override { return false; }

 private:
  static at::Tensor bf16(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }
  // Two fraction bits, from 2^-48 to 1.5 * 2^15.
  static at::Tensor e6m2(const at::Tensor& x) {
    const auto [fraction, exponent] = at::frexp(x);
    return fraction.mul(8).round().div(8).mul(exponent.to(at::kFloat).exp2()).clamp(0x1p-48, 0x1.8p15);
  }
};

VERNIER_PLUGIN(HiF4, "hif4", "1.0.0")
