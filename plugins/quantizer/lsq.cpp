// lsq: integers of a few bits times a learned step, one for each layer and operand. The gradient of numbers that are
// cut off is 0. Only operands of y learn; others keep the step of their first tensor.
//   bits = 4               2 to 8
//   unsigned = false       true: from 0 on, for numbers after a ReLU
//   learning_rate = 0.01   of the step
// Source: arXiv 1902.08153. The step learns by gradient descent here, and there by the optimizer of the weights.
#include <ATen/ATen.h>
#include <vernier/lab/learned_numbers.h>

#include <cmath>

class Lsq final : public vernier::Quantizer {
 public:
  explicit Lsq(vernier::Options& options)
      : steps_(options.get("learning_rate", 0.01, "of the step", vernier::at_least(0.0))) {
    const auto bits = options.get("bits", 4, "of a number", vernier::between(2, 8));
    const bool is_unsigned = options.get("unsigned", false, "numbers are at least 0, as after a ReLU");
    most_ = (1 << (is_unsigned ? bits : bits - 1)) - 1;
    least_ = is_unsigned ? 0 : -most_ - 1;
    remember("step", steps_);
  }
  void attach(vernier::Bus& bus) override { steps_.attach(bus); }

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const double step = step_of(of);
    return {of.numbers.div(step).clamp(least_, most_).round().mul(step)};
  }
  bool has_gradient() const override { return true; }
  torch::Tensor gradient(const vernier::Operand& of, const torch::Tensor& of_result) override {
    const auto x = of.numbers / step_of(of), y = x.clamp(least_, most_).round();
    const auto is_inside = x.gt(least_).logical_and(x.lt(most_));
    const auto count = static_cast<double>(of.is_weight ? x.numel() : x.size(-1));
    steps_.add_gradient(of, of_result * at::where(is_inside, y - x, y) / std::sqrt(count * most_));
    return of_result * is_inside;
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }

 private:
  double step_of(const vernier::Operand& of) {
    const auto first = [&] { return 2 * of.numbers.abs().mean().item<double>() / std::sqrt(most_); };
    return std::max(steps_.of(of, first), 1e-30);
  }

  vernier::LearnedNumbers steps_;
  double least_ = 0, most_ = 0;
};

VERNIER_PLUGIN(Lsq, "lsq", "1.0.0")
