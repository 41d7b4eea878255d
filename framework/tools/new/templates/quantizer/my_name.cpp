// my_name: integers of a few bits, with one scale for each block of numbers that a product sums over.
//   bits = 8     of a number
//   block = 32   numbers that share a scale
//
// This file is a complete quantizer. Replace its rule with your own. docs/guides/quantizers.md lists
// what a quantizer gets and may return.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

class MyName final : public vernier::Quantizer {
 public:
  // Reads the options and does nothing else. `vernier plugins quantizer/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : largest_((1 << (options.get("bits", 8, "of a number", vernier::between(2, 16)) - 1)) - 1),
        block_(options.get("block", 32, "numbers that share a scale", vernier::at_least(1))) {}

  // Called for each operand of each product. Its last dimension is the one that the product sums over.
  vernier::UnitOperand quantize(const vernier::Operand& of) override {
    const auto x = of.numbers.unflatten(-1, {-1, block_});
    const auto scale = x.abs().amax(-1, /*keepdim=*/true).div(largest_).clamp_min(1e-30);  // never 0: zeros stay zeros
    return {x.div(scale).round().mul(scale).flatten(-2)};
  }
  std::int64_t multiple() const override { return block_; }  // zeros fill up the last block of operand and result
  bool draws() const override { return false; }              // true for a rule that takes of.seed

 private:
  double largest_;
  std::int64_t block_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
