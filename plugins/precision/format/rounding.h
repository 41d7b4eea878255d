// The built-in quantizers: an operand in a number format, with the scales of its blocks or of its tensor.
#pragma once

#include <vernier/lab/quantizer.h>
#include <vernier/options.h>

#include <memory>
#include <optional>
#include <string>

namespace formats {

inline vernier::UnitOperand turned(const vernier::UnitOperand& x) {
  return mapped(x, [](const torch::Tensor& tensor) { return tensor.transpose(-2, -1); });
}

// Returns quantizer.gradient() of an operand whose rows are filled up with zeros to a multiple of its own.
torch::Tensor gradient_through(vernier::Quantizer& quantizer, vernier::Operand of, torch::Tensor of_result);

class FormatQuantizer : public vernier::Quantizer {
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
