// luq: gradients in 4 bits, a sign and a power of two up to the largest magnitude of the tensor. Numbers are rounded
// stochastically, those below the least power to it or to 0, so the mean is the gradient.
//   bits = 4      2 to 5
//   samples = 1   rounded numbers whose mean is taken, as the paper does for dw
// Source: arXiv 2112.10769.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

#include <cmath>

class Luq final : public vernier::Quantizer {
 public:
  explicit Luq(vernier::Options& options)
      : powers_((1 << (options.get("bits", 4, "of a number", vernier::between(2, 5)) - 1)) - 2),
        samples_(static_cast<std::uint64_t>(
            options.get("samples", 1, "rounded numbers whose mean is taken", vernier::between(1, 64)))) {}

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto& x = of.numbers;
    if (x.numel() == 0) return {x.clone()};
    const auto most = x.abs().max(), least = most.div(std::exp2(powers_)), y = x.abs().div(least);
    const auto power = std::get<1>(at::frexp(y)).sub(1).to(at::kFloat).exp2();
    const auto below = power.mul(y.ge(1)), step = power.clamp_min(1);
    auto sum = at::zeros_like(x);
    for (std::uint64_t i = 0; i < samples_; ++i) {
      const auto draw = vernier::uniform_like(x, of.seed + i * 0x9e3779b97f4a7c15U);
      sum += below + step * draw.lt((y - below) / step);
    }
    const auto rounded = sum.mul(least / static_cast<double>(samples_)).mul(x.sign());
    return {at::where(x.isnan().logical_or(most.ne(0)), rounded, x)};
  }
  bool is_unbiased() const override { return true; }

 private:
  double powers_;
  std::uint64_t samples_;
};

VERNIER_PLUGIN(Luq, "luq", "1.0.0")
