// ms_eden: NVFP4 whose expected value is the number before rounding. It rounds numbers to nearest, which makes a group
// of them shorter or longer. It multiplies the scales of the group by the factor that undoes this, and rounds these
// products stochastically. The operands must be rotated: rotate = {dx = 128, …}.
//   group = 128   numbers that share a correction, a multiple of 16: the size of the rotation
// Source: Quartet II, arXiv 2601.22813. The expected value is over the random signs of the rotation and over the
// rounding of the scales, not over the latter alone.
#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/lab/quantizer.h>

using torch::Tensor;

class MsEden final : public vernier::Quantizer {
 public:
  explicit MsEden(vernier::Options& options)
      : group_(options.get("group", 128, "numbers that share a correction", vernier::between(16, 4096))) {
    if (group_ % 16 != 0) options.refuse("group", "is a multiple of 16, the numbers of a block");
  }

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    constexpr float most = 6 / (17.0F / 16 * 0.93F);  // the corrected scale keeps room below 6
    const auto x = of.numbers.unflatten(-1, {-1, group_ / 16, 16});
    if (x.numel() == 0) return {of.numbers.clone()};
    const auto largest = x.abs().max();
    const auto t = torch::where(largest.eq(0), torch::ones_like(largest), largest / 255.99F / most);
    const auto e4m3 = vernier::tensor_format("e4m3");
    auto s = vernier::round_to(x.abs().amax(-1, /*keepdim=*/true) / most / t, e4m3);
    s = s.masked_fill(s.eq(0), 1);
    const auto y = x / (s * t),
               q = vernier::round_to(y, vernier::tensor_format("e2m1"), {}, {vernier::Rounding::nearest_away});
    const auto both = (y * q).sum({-1, -2}, /*keepdim=*/true);
    const auto c = torch::where(both.eq(0), torch::ones_like(both), y.square().sum({-1, -2}, true) / both);
    const auto scale = vernier::round_to(s * c, e4m3, {}, {vernier::Rounding::stochastic, of.seed});
    return {(q * scale * t).flatten(-3)};
  }
  std::int64_t multiple() const override { return group_; }

 private:
  std::int64_t group_;
};

VERNIER_PLUGIN(MsEden, "ms_eden", "1.0.0")
