#include "names.h"

#include <vernier/error.h>

namespace formats {

using vernier::Options;
using vernier::TensorFormat;

namespace {

// Refuses the option with the message of what `make` throws.
template <class Make>
auto guarded(Options& options, const char* key, const Make& make) {
  try {
    return make();
  } catch (const vernier::Error& error) {
    options.refuse(key, "is refused: " + std::string(error.what()));
  }
}

void read_scales(Options& one, TensorFormat& format) {
  format.block =
      one.get("block", 0, "numbers along the summed dimension that share a scale; 0: none", vernier::between(0, 65536));
  const auto scale = one.get("scale", "e8m0", "format of a block's scale; fp32: not rounded");
  const bool is_power = scale == "e8m0";
  const auto rule = one.choose("rule", is_power ? "floor" : "nearest", {"floor", "ceil", "even", "rceil", "nearest"},
                               "how a scale comes from the largest magnitude of its block");
  format.tensor_scale = one.get("tensor_scale", false, "the tensor has a scale in float32 besides");
  if (format.block == 0) {
    for (const char* key : {"scale", "rule", "tensor_scale"}) {
      if (one.given(key)) one.refuse(key, "is of blocks; give `block`, the numbers that share a scale");
    }
    return;
  }
  if (one.given("saturate") && !format.element.saturate) {
    one.refuse("saturate", "is always true with `block`, whose scales keep numbers in range; leave it out");
  }
  format.element.saturate = true;
  format.rule = vernier::scale_rule_named(rule);
  format.has_block_scale = scale != unrounded;
  if (format.has_block_scale) {
    format.scale = guarded(one, "scale", [&] { return vernier::number_format(scale); });
    format.scale.saturate = true;
    if (!is_power && format.scale.kind != vernier::NumberFormat::Kind::floating) {
      one.refuse("scale", "is \"" + scale + "\"; a scale is e8m0, fp32 or a floating-point format");
    }
  }
  if (is_power == (rule == "nearest")) {
    one.refuse("rule", is_power ? "\"nearest\" is for scales with a mantissa; take floor, ceil, even or rceil"
                                : "is for scales in e8m0; others are the nearest number");
  }
  if (format.tensor_scale && (is_power || !format.has_block_scale)) {
    one.refuse("tensor_scale", "is for scales with few exponent bits, such as e4m3");
  }
}

}  // namespace

Names::Names(Options& options) {
  options.tables("format", "formats of your own, by name", [this](Options& one) { add(one); });
}

OptionalFormat Names::find(const std::string& name) const {
  for (const auto& own : own_) {
    if (own.name == name) return own;
  }
  try {
    return vernier::tensor_format(name);
  } catch (const vernier::Error&) {
    return std::nullopt;
  }
}

void Names::require(Options& options, const char* key, const std::string& name) const {
  if (name != unrounded && !find(name)) guarded(options, key, [&] { return vernier::tensor_format(name); });
}

void Names::add(Options& one) {
  TensorFormat format;
  format.name = one.require<std::string>("name", "for forward and operands");
  const auto element = one.get("element", "", "a number format by name; empty: of the options below");
  auto& number = format.element;
  number.name = format.name;
  number.exponent = static_cast<int>(one.get("exponent", 4, "exponent bits of a code", vernier::between(1, 11)));
  number.mantissa = static_cast<int>(one.get("mantissa", 3, "mantissa bits of a code", vernier::between(0, 22)));
  const int usual = (1 << (number.exponent - 1)) - 1;
  number.bias = static_cast<int>(one.get("bias", usual, "of the exponent", vernier::between(-1000, 1100)));
  const auto nan = one.choose("nan", "one", {"none", "ieee", "one", "negative_zero"}, "which code is NaN");
  using Nan = vernier::NumberFormat::Nan;
  number.nan = nan == "none" ? Nan::none : nan == "ieee" ? Nan::ieee : nan == "one" ? Nan::one : Nan::negative_zero;
  number.infinities = one.get("infinities", nan == "ieee", "the format has codes for them");
  number.subnormals = one.get("subnormals", true, "numbers below the least normal one");
  number.bits = 1 + number.exponent + number.mantissa;
  const bool is_small = number.bits <= 8;
  number.saturate = one.get("saturate", is_small, "what is beyond the largest number becomes the largest");
  if (!element.empty()) {
    for (const char* key : {"exponent", "mantissa", "bias", "nan", "infinities", "subnormals"}) {
      if (one.given(key)) one.refuse(key, "is for a format without `element`, which names one");
    }
    const bool saturates = number.saturate;
    number = guarded(one, "element", [&] { return vernier::number_format(element); });
    if (one.given("saturate")) number.saturate = saturates;
  }
  guarded(one, element.empty() ? "exponent" : "element", [&] {
    number.check();
    return 0;
  });
  read_scales(one, format);
  for (const auto& other : own_) {
    if (other.name == format.name) one.refuse("name", "is \"" + format.name + "\" twice");
  }
  own_.push_back(std::move(format));
}

}  // namespace formats
