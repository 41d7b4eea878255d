// The built-in quantizers: an operand in a number format, with the scales of its blocks or of its tensor.
#pragma once

#include <vernier/lab/quantizer.h>
#include <vernier/options.h>

#include <memory>
#include <optional>
#include <string>

namespace formats {

// Returns an operand whose numbers are the results of change(numbers). If each number has a least exponent or a scale
// of its own, these are changed in the same way.
template <class Change>
vernier::UnitOperand mapped(const vernier::UnitOperand& x, const Change& change) {
  const auto& least = x.least_exponents;
  const bool has_each = least.defined() && least.dim() != 0;
  return {change(x.numbers), has_each ? change(least) : least, x.scale,
          x.block_scales.defined() ? change(x.block_scales) : x.block_scales};
}

// The numbers with their scales, for a product in float32.
inline torch::Tensor value(const vernier::UnitOperand& x) {
  const auto y = x.block_scales.defined() ? x.numbers * x.block_scales : x.numbers;
  return x.scale.defined() ? y * x.scale : y;
}
inline vernier::UnitOperand turned(const vernier::UnitOperand& x) {
  return mapped(x, [](const torch::Tensor& tensor) { return tensor.transpose(-2, -1); });
}

// Returns what the quantizer makes of an operand, whose rows are filled up with zeros to a multiple of its own. Throws
// Error with Error::Kind::plugin if the result is not float32 of the operand's shape.
vernier::UnitOperand quantized(vernier::Quantizer& quantizer, vernier::Operand of);
// Returns quantizer.gradient() in the same way.
torch::Tensor gradient_through(vernier::Quantizer& quantizer, vernier::Operand of, torch::Tensor of_result);

class FormatQuantizer final : public vernier::Quantizer {
 public:
  // Reads how the operand `key` is rounded, and refuses an option that its format has no use for.
  FormatQuantizer(vernier::Options& options, const std::string& key, vernier::TensorFormat format);
  vernier::UnitOperand quantize(const vernier::Operand& of) override;
  bool serves_both(bool is_weight) const override;
  bool draws() const override { return draw_.rounding == vernier::Rounding::stochastic; }

  const vernier::TensorFormat& format() const { return format_; }
  bool has_squares() const { return square_weights_; }
  // How the last operand was rounded.
  struct Last {
    vernier::ScaleBlock block;
    vernier::Draw draw;
  };
  const Last& last() const { return last_; }

 private:
  vernier::TensorFormat format_;
  vernier::Draw draw_;
  bool square_weights_ = false;
  Last last_;
};

}  // namespace formats
