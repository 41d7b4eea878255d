#include "rounding.h"

#include <ATen/ATen.h>

namespace formats {

using vernier::Options;
using vernier::ScaleBlock;
using vernier::UnitOperand;

torch::Tensor gradient_through(vernier::Quantizer& quantizer, vernier::Operand of, torch::Tensor of_result) {
  const auto size = of.numbers.size(-1), multiple = quantizer.multiple(),
             missing = (multiple - size % multiple) % multiple;
  if (missing == 0) return quantizer.gradient(of, of_result);
  of.numbers = at::constant_pad_nd(of.numbers, {0, missing});
  return quantizer.gradient(of, at::constant_pad_nd(of_result, {0, missing})).narrow(-1, 0, size);
}

FormatQuantizer::FormatQuantizer(Options& options, const std::string& key, vernier::TensorFormat format)
    : format_(std::move(format)) {
  using Kind = vernier::NumberFormat::Kind;
  const auto refuse_if = [&](bool is_unused, const char* option, const char* why) {
    if (is_unused && options.given(option)) options.refuse(option, why);
  };
  if (format_.element.kind == Kind::power_of_two) {
    options.refuse("use", "is \"" + format_.name + "\", a format of scales: it has neither sign nor zero");
  }
  const auto scaling = options.choose("scaling", "auto", {"auto", "tensor", "none"},
                                      "of formats without blocks; auto: one scale a tensor, up to 8 bits");
  refuse_if(format_.block != 0, "scaling", "is for formats without blocks, such as e4m3; leave it out");
  if (format_.block == 0 && (scaling == "tensor" || (scaling == "auto" && format_.element.bits <= 8))) {
    format_.block = -1;
  }
  const auto rule = options.choose("scale_rule", "auto", {"auto", "floor", "ceil", "even", "rceil"},
                                   "of block scales that are powers of two; auto: the format's");
  const bool has_rule = format_.has_block_scale && format_.scale.kind == Kind::power_of_two;
  refuse_if(!has_rule, "scale_rule", "is for formats whose scales are powers of two, such as mxfp8");
  if (rule != "auto") format_.rule = vernier::scale_rule_named(rule);
  const auto headroom = options.get("headroom", 1.0, "share of the format's largest number that scales are for",
                                    vernier::between(0.125, 1));
  refuse_if(format_.block == 0, "headroom", "is for formats with scales, such as nvfp4");
  format_.headroom = static_cast<float>(headroom);
  draw_.rounding = vernier::rounding_named(
      options.choose("rounding", "nearest", {"nearest", "away", "zero", "stochastic"}, "how a number is rounded"));
  draw_.bits = static_cast<int>(options.get("random_bits", 23, "of stochastic rounding", vernier::between(1, 23)));
  refuse_if(!draws(), "random_bits", "is for stochastic rounding");
  square_weights_ = options.get("square_weights", false, "blocks of weights are square");
  refuse_if(format_.block <= 0 || key.back() != 'w', "square_weights", "is for operands w in formats with blocks");
}

bool FormatQuantizer::serves_both(bool is_weight) const {
  return format_.block <= 0 || (is_weight && square_weights_);
}

// The draws depend on the place of a number in the layer's own tensor, so the operand is turned back first.
UnitOperand FormatQuantizer::quantize(const vernier::Operand& of) {
  const auto x = of.is_turned ? of.numbers.transpose(-2, -1) : of.numbers;
  last_ = {vernier::per_tensor, draw_};
  if (const auto n = format_.block; n > 0) {
    const bool is_square = of.is_weight && square_weights_;
    last_.block = is_square ? ScaleBlock{n, n} : of.is_turned ? ScaleBlock{n, 1} : ScaleBlock{1, n};
  }
  last_.draw.seed = of.seed;
  const auto& [block, draw] = last_;
  auto y = of.is_for_unit ? vernier::unit_operand(x, format_, block, draw)
                          : UnitOperand{vernier::round_to(x, format_, block, draw)};
  return of.is_turned ? turned(y) : y;
}

}  // namespace formats
