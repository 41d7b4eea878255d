// quest: integers of a few bits without a zero, with a scale for each row from its root mean square. The gradient
// passes where a number is near what it became. The operands of y are rotated: rotate = {y = 128}.
//   bits = 4   1, 2, 3, 4 or 8
// Source: QuEST, arXiv 2502.05003, with the clipping factors of its code.
#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/lab/quantizer.h>

#include <map>

using torch::Tensor;

class Quest final : public vernier::Quantizer {
 public:
  explicit Quest(vernier::Options& options) {
    static const std::map<std::int64_t, double> factors = {
        {1, 0.79788}, {2, 1.49353}, {3, 2.05107}, {4, 2.51393}, {8, 3.88494}};
    const auto bits = options.get("bits", 4, "of a number", vernier::between(1, 8));
    if (!factors.contains(bits)) options.refuse("bits", "is 1, 2, 3, 4 or 8");
    factor_ = factors.at(bits);
    steps_ = static_cast<double>((1 << bits) - 1);
  }

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto rms = root_mean_square(of.numbers);
    const auto step = (rms * factor_ + 1e-8) * (2 / steps_);
    const auto level = (of.numbers / step + 0.5).round().sub(0.5).clamp(-steps_ / 2, steps_ / 2);
    return {level.mul(step).masked_fill(rms.eq(0), 0)};
  }
  bool has_gradient() const override { return true; }
  Tensor gradient(const vernier::Operand& of, const Tensor& of_result) override {
    const auto off = (quantize(of).numbers - of.numbers).abs();
    return of_result * off.le(root_mean_square(of.numbers) * (factor_ / steps_));
  }
  bool draws() const override { return false; }

 private:
  static Tensor root_mean_square(const Tensor& x) { return x.square().mean(-1, /*keepdim=*/true).sqrt(); }
  double factor_ = 0, steps_ = 0;
};

VERNIER_PLUGIN(Quest, "quest", "1.0.0")
