// The built-in quantizers: an operand in a number format, with the scales of its blocks or of its tensor.
#pragma once

#include <vernier/lab/quantizer.h>
#include <vernier/options.h>

#include <memory>
#include <optional>
#include <string>

#include "delayed.h"

namespace formats {

// Returns an operand whose numbers are the results of change(numbers). If each number has a least exponent of its own,
// these are changed in the same way.
template <class Change>
vernier::UnitOperand mapped(const vernier::UnitOperand& x, const Change& change) {
  const auto& least = x.least_exponents;
  const bool has_each = least.defined() && least.dim() != 0;
  return {change(x.numbers), has_each ? change(least) : least, x.scale};
}

// The numbers with their scale, for a product in float32.
inline torch::Tensor value(const vernier::UnitOperand& x) {
  return x.scale.defined() ? x.numbers * x.scale : x.numbers;
}
inline vernier::UnitOperand turned(const vernier::UnitOperand& x) {
  return mapped(x, [](const torch::Tensor& tensor) { return tensor.transpose(-2, -1); });
}

// How a format rounds. The options of [precision] are those of the operands that have none of their own.
struct RoundingOptions {
  std::string scaling = "auto", scale_rule = "auto", rounding = "nearest", uneven_blocks = "shorter";
  std::string amax_compute = "max";
  std::int64_t amax_history_len = 1024, random_bits = 23;
  bool square_weights = false;
  double headroom = 1;

  // Reads the options; those that are not given stay as in `other`.
  static RoundingOptions read(vernier::Options& options, const RoundingOptions& other);
};

class FormatQuantizer final : public vernier::Quantizer {
 public:
  // Refuses an option of the table that the format has no use for.
  FormatQuantizer(const vernier::Options& options, const char* key, vernier::TensorFormat format,
                  const RoundingOptions& rounding);
  vernier::UnitOperand quantize(const vernier::Operand& of) override;
  bool serves_both(bool is_weight) const override;
  bool draws() const override { return draw_.rounding == vernier::Rounding::stochastic; }
  void end_update() override;

  const vernier::TensorFormat& format() const { return format_; }
  bool has_rule() const {
    return format_.has_block_scale && format_.scale.kind == vernier::NumberFormat::Kind::power_of_two;
  }
  bool has_squares() const { return square_weights_; }
  bool refuses_uneven() const { return refuses_uneven_; }
  bool is_delayed() const { return delayed_.has_value(); }
  // How the last operand was rounded.
  struct Last {
    vernier::TensorFormat format;
    vernier::ScaleBlock block;
    vernier::Draw draw;
  };
  const Last& last() const { return last_; }

 private:
  vernier::TensorFormat format_;
  vernier::Draw draw_;
  bool square_weights_, refuses_uneven_;
  std::optional<DelayedScales> delayed_;  // gives the scale of the tensor; nothing: the tensor itself does
  Last last_;
};

}  // namespace formats
