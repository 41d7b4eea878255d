// tetrajet_v2: NVFP4 in double blocks. 16 numbers share an 8-bit scale, and 128 numbers a float32 one.
//   rounding = "nearest"   nearest | stochastic
// Source: TetraJet-v2, arXiv 2510.27527, with the order of operations of its emulation. A block of zeros has the least
// scale of its kernels.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class TetraJetV2 final : public vernier::Quantizer {
 public:
  explicit TetraJetV2(vernier::Options& options)
      : rounding_(vernier::rounding_named(
            options.choose("rounding", "nearest", {"nearest", "stochastic"}, "how a number is rounded"))) {}

  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.unflatten(-1, {-1, 8, 16});
    const auto most = x.abs().amax({-1}, /*keepdim=*/true);
    auto outer = most.amax({-2}, /*keepdim=*/true) / 448 / 6;
    outer = outer.masked_fill(outer.eq(0), 1);
    const auto inner = vernier::round_to(most / outer / 6, vernier::tensor_format("e4m3"));
    const auto scale = inner.masked_fill(inner.eq(0), 0x1p-9) * outer;
    const auto codes = vernier::round_to(x / scale, vernier::tensor_format("e2m1"), {}, {rounding_, of.seed});
    return {codes.mul(scale).flatten(-3)};
  }
  std::int64_t multiple() const override { return 128; }
  bool draws() const override { return rounding_ == vernier::Rounding::stochastic; }

 private:
  vernier::Rounding rounding_;
};

VERNIER_PLUGIN(TetraJetV2, "tetrajet_v2", "1.0.0")
