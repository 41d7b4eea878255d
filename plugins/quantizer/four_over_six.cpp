// four_over_six: NVFP4 of which each block takes the better of two scales, for a largest number of 6 or of 4.
//   error = "squares"   what is compared: squares | magnitudes, of the differences to the exact numbers
// Source: arXiv 2512.02010. Transformer Engine compares magnitudes by default.
#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/lab/quantizer.h>

#include <limits>

namespace {

using torch::Tensor;

constexpr float most = std::numeric_limits<float>::max();

Tensor to(const char* format, const Tensor& x) {
  return vernier::round_to(x, vernier::tensor_format(format));
}

class FourOverSix final : public vernier::Quantizer {
 public:
  explicit FourOverSix(vernier::Options& options)
      : by_squares_(options.choose("error", "squares", {"squares", "magnitudes"}, "what is compared") == "squares") {}

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.unflatten(-1, {-1, 16});
    if (x.numel() == 0) return {of.numbers.clone()};
    const auto largest = x.abs().max();
    const auto S = torch::where(largest.eq(0), torch::ones_like(largest), 1536 / largest).clamp_max(most);
    const auto wanted = x.abs().amax(-1, /*keepdim=*/true) * (S * (1.0F / 6));
    const auto in = [&](const Tensor& scale) {
      const auto encode = scale.mul(S.reciprocal()).reciprocal().clamp_max(most);
      return to("e2m1", x.mul(encode)).mul(scale).div(S);
    };
    const auto off = [&](const Tensor& y) {
      return (by_squares_ ? (y - x).square() : (y - x).abs()).sum(-1, /*keepdim=*/true);
    };
    const auto six = in(to("e4m3", wanted)), four = in(to("e4m3", wanted * 1.5F));
    return {torch::where(off(four) < off(six), four, six).flatten(-2)};
  }
  std::int64_t multiple() const override { return 16; }
  bool draws() const override { return false; }

 private:
  bool by_squares_;
};

}  // namespace

VERNIER_PLUGIN(FourOverSix, "four_over_six", "1.0.0")
