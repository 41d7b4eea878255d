// pact: evenly spaced numbers from 0 to a learned clip, one for each layer, for x after a ReLU. The gradient of numbers
// that are cut off goes to the clip. Only operands of y learn.
//   bits = 4               1 to 8
//   clip = 0.0             the first clip; 0: the largest number of the first tensor
//   learning_rate = 0.01   of the clip
//   decay = 0.0002         of the clip, toward 0
// Source: arXiv 1805.06085. There the first clip is 10, and the optimizer of the weights moves it.
#include <ATen/ATen.h>
#include <vernier/lab/learned_numbers.h>

#include <algorithm>

class Pact final : public vernier::Quantizer {
 public:
  explicit Pact(vernier::Options& options)
      : most_((1 << options.get("bits", 4, "of a number", vernier::between(1, 8))) - 1),
        clip_(options.get("clip", 0.0, "the first clip; 0: the largest number of the first tensor",
                          vernier::at_least(0.0))),
        clips_{options.get("learning_rate", 0.01, "of the clip", vernier::at_least(0.0)),
               options.get("decay", 0.0002, "of the clip, toward 0", vernier::at_least(0.0))} {
    remember("clip", clips_);
  }
  void attach(vernier::Bus& bus) override { clips_.attach(bus); }

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const double clip = clip_of(of);
    return {of.numbers.clamp(0, clip).mul(most_ / clip).round().mul(clip / most_)};
  }
  bool has_gradient() const override { return true; }
  torch::Tensor gradient(const vernier::Operand& of, const torch::Tensor& of_result) override {
    const double clip = clip_of(of);
    clips_.add_gradient(of, of_result * of.numbers.ge(clip));
    return of_result * of.numbers.ge(0).logical_and(of.numbers.lt(clip));
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }

 private:
  double clip_of(const vernier::Operand& of) {
    const bool has_first = clip_ > 0 || of.numbers.numel() == 0;
    const auto first = [&] { return has_first ? clip_ : of.numbers.max().item<double>(); };
    return std::max(clips_.of(of, first), 1e-30);
  }

  double most_, clip_;
  vernier::LearnedNumbers clips_;
};

VERNIER_PLUGIN(Pact, "pact", "1.0.0")
