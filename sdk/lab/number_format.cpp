#include <vernier/error.h>
#include <vernier/lab/number_format.h>
#include <vernier/options.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

namespace vernier {

namespace {

using Kind = NumberFormat::Kind;
using Nan = NumberFormat::Nan;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void refuse_format(const std::string& text) {
  throw Error(text, Error::Kind::configuration);
}

// `draw` of stochastic rounding is compared with the distance from the lower neighbour.
double rounded_integer(double t, Rounding rounding, double draw) {
  const double lower = std::floor(t), rest = t - lower;
  switch (rounding) {
    case Rounding::nearest_even:
      return std::nearbyint(t);
    case Rounding::nearest_away:
      return rest >= 0.5 ? lower + 1 : lower;
    case Rounding::toward_zero:
      return lower;
    case Rounding::stochastic:
      return rest > draw ? lower + 1 : lower;
  }
  return lower;
}

std::uint32_t mask(int bits) {
  return bits >= 32 ? ~0U : (1U << bits) - 1;
}

// The largest code of a positive finite number.
std::uint32_t largest_code(const NumberFormat& f) {
  const auto top = mask(f.bits - 1);
  if (f.kind != Kind::floating) return top;
  switch (f.nan) {
    case Nan::none:
      return top;
    case Nan::one:
      return top - 1;
    case Nan::ieee:
      return top - (1U << f.mantissa);
    case Nan::negative_zero:
      return f.infinities ? top - 1 : top;
  }
  return top;
}

double decode_posit(std::uint32_t code, int bits, int es) {
  const std::uint32_t sign = 1U << (bits - 1);
  if (code == 0) return 0;
  if (code == sign) return not_a_number;
  const bool is_negative = (code & sign) != 0;
  const std::uint32_t body = (is_negative ? 0U - code : code) & mask(bits - 1);
  int at = bits - 2;
  const std::uint32_t first = body >> at & 1;
  int run = 0;
  while (at >= 0 && (body >> at & 1) == first) --at, ++run;
  const int regime = first != 0 ? run - 1 : -run;
  --at;  // the bit that ends the regime
  int power = 0;
  for (int i = 0; i < es; ++i, --at) power = power * 2 + (at >= 0 ? static_cast<int>(body >> at & 1) : 0);
  const int left = std::max(at + 1, 0);
  const double fraction = std::ldexp(static_cast<double>(body & mask(left)), -left);
  const double value = std::ldexp(1 + fraction, regime * (1 << es) + power);
  return is_negative ? -value : value;
}

// Rounds the string of bits, not the value, as the Posit Standard (2022) asks for. Only 0 becomes 0, and no number
// becomes NaR.
std::uint32_t encode_posit(double x, int bits, int es, Rounding rounding) {
  const std::uint32_t sign = 1U << (bits - 1);
  if (x == 0) return 0;
  if (!std::isfinite(x)) return sign;
  const double magnitude = std::fabs(x);
  const int exponent = std::ilogb(magnitude);
  const int regime = exponent >> es, power = exponent - regime * (1 << es);
  std::uint32_t code = 0;
  if (regime >= bits - 2) {
    code = mask(bits - 1);
  } else if (regime < 2 - bits) {
    code = 1;
  } else {
    const auto fraction = std::bit_cast<std::uint64_t>(std::ldexp(magnitude, -exponent)) & ((1ULL << 52) - 1);
    // regime, exponent and 52 bits of fraction behind each other
    const int run = regime >= 0 ? regime + 1 : -regime;
    unsigned __int128 text = regime >= 0 ? ((static_cast<unsigned __int128>(1) << run) - 1) << 1 : 1;
    int length = run + 1;
    text = text << es | static_cast<unsigned>(power);
    text = text << 52 | fraction;
    length += es + 52;
    const int dropped = length - (bits - 1);
    code = static_cast<std::uint32_t>(text >> dropped);
    const auto rest = text & ((static_cast<unsigned __int128>(1) << dropped) - 1);
    const auto half = static_cast<unsigned __int128>(1) << (dropped - 1);
    const bool is_up = rounding == Rounding::toward_zero    ? false
                       : rounding == Rounding::nearest_away ? rest >= half
                                                            : rest > half || (rest == half && (code & 1) != 0);
    if (is_up && code < mask(bits - 1)) ++code;
    if (code == 0) code = 1;
  }
  return x < 0 ? (0U - code) & mask(bits) : code;
}

NumberFormat floating(const std::string& name, int exponent, int mantissa, Nan nan, int bias) {
  NumberFormat f;
  f.name = name;
  f.bits = 1 + exponent + mantissa;
  f.exponent = exponent;
  f.mantissa = mantissa;
  f.bias = bias;
  f.nan = nan;
  f.infinities = nan == Nan::ieee;
  f.saturate = f.bits <= 8;
  return f;
}

NumberFormat floating(const std::string& name, int exponent, int mantissa, Nan nan = Nan::ieee) {
  return floating(name, exponent, mantissa, nan, (1 << (exponent - 1)) - 1);
}

NumberFormat e8m0() {
  NumberFormat f;
  f.name = "e8m0";
  f.kind = Kind::power_of_two;
  f.exponent = 8;
  f.mantissa = 0;
  f.bias = 127;
  f.nan = Nan::one;
  f.infinities = false;
  f.saturate = true;
  return f;
}

const std::vector<NumberFormat>& named() {
  static const std::vector<NumberFormat> all = {
      floating("e4m3", 4, 3, Nan::one),
      floating("e5m2", 5, 2),
      floating("e4m3_ieee", 4, 3),
      floating("e3m4", 3, 4),
      floating("e4m3fnuz", 4, 3, Nan::negative_zero, 8),
      floating("e5m2fnuz", 5, 2, Nan::negative_zero, 16),
      floating("e4m3b11fnuz", 4, 3, Nan::negative_zero, 11),
      floating("e2m3", 2, 3, Nan::none),
      floating("e3m2", 3, 2, Nan::none),
      floating("e2m1", 2, 1, Nan::none),
      e8m0(),
      floating("bf16", 8, 7),
      floating("fp16", 5, 10),
      floating("tf32", 8, 10),
  };
  return all;
}

// Reads digits behind a word: "int8" → 8, and moves `text` behind them.
std::optional<int> number_behind(std::string& text, const std::string& word) {
  if (!text.starts_with(word)) return std::nullopt;
  std::size_t end = word.size();
  while (end < text.size() && end < word.size() + 3 && text[end] >= '0' && text[end] <= '9') ++end;
  if (end == word.size()) return std::nullopt;
  const int number = std::stoi(text.substr(word.size(), end - word.size()));
  text.erase(0, end);
  return number;
}

// Reads a name of two numbers, such as e3m2.
struct TwoNumbers {
  int first, second;
  std::string rest;
};
std::optional<TwoNumbers> two_numbers(std::string text, const std::string& before, const std::string& between) {
  const auto first = number_behind(text, before);
  if (!first) return std::nullopt;
  const auto second = number_behind(text, between);
  if (!second) return std::nullopt;
  return TwoNumbers{*first, *second, text};
}

NumberFormat fixed(const std::string& name, int bits, int fraction, bool is_symmetric) {
  NumberFormat f;
  f.name = name;
  f.kind = Kind::fixed;
  f.bits = bits;
  f.exponent = 0;
  f.mantissa = fraction;
  f.bias = 0;
  f.nan = Nan::none;
  f.infinities = false;
  f.saturate = true;
  f.is_symmetric = is_symmetric;
  return f;
}

std::optional<NumberFormat> of_pattern(const std::string& name) {
  if (const auto of = two_numbers(name, "e", "m"); of && of->rest.empty()) {
    const int bits = 1 + of->first + of->second;
    NumberFormat f;
    if (of->first < 1 || of->first > 11) {
      refuse_format("the number format " + name + " cannot be: its exponent has 1 to 11 bits");
    }
    return floating(name, of->first, of->second, bits <= 6 ? Nan::none : Nan::ieee);
  }
  if (const auto of = two_numbers(name, "k", "p"); of && (of->rest.empty() || of->rest == "_finite")) {
    const int exponent = of->first - of->second;
    if (exponent < 1 || exponent > 11 || of->second < 1) {
      refuse_format("the number format " + name + " cannot be: P is at least 1, and K - P is 1 to 11");
    }
    auto f = floating(name, exponent, of->second - 1, Nan::negative_zero, 1 << (exponent - 1));
    f.infinities = of->rest.empty();
    f.saturate = true;
    return f;
  }
  if (const auto of = two_numbers(name, "posit", "_"); of && of->rest.empty()) {
    NumberFormat f;
    f.name = name;
    f.kind = Kind::posit;
    f.bits = of->first;
    f.exponent = of->second;
    f.mantissa = f.bias = 0;
    f.nan = Nan::negative_zero;
    f.infinities = false;
    f.saturate = true;
    return f;
  }
  if (const auto of = two_numbers(name, "fixed", "."); of && of->rest.empty()) {
    return fixed(name, of->first, of->second, false);
  }
  auto rest = name;
  if (const auto bits = number_behind(rest, "int"); bits && rest.empty()) return fixed(name, *bits, 0, true);
  return std::nullopt;
}

}  // namespace

Rounding rounding_named(const std::string& word) {
  if (word == "nearest") return Rounding::nearest_even;
  if (word == "away") return Rounding::nearest_away;
  if (word == "zero") return Rounding::toward_zero;
  if (word == "stochastic") return Rounding::stochastic;
  refuse_format("there is no rounding \"" + word + "\"; there are nearest, away, zero and stochastic");
}

void NumberFormat::check() const {
  const std::string what = "the number format " + (name.empty() ? "of these options" : name) + " cannot be: ";
  const int most = kind == Kind::floating ? 24 : 16;
  if (bits < 2 || bits > most) {
    refuse_format(what + "it has " + std::to_string(bits) + " bits, and 2 to " + std::to_string(most) +
                  " are possible");
  }
  if (kind == Kind::posit && (exponent < 0 || exponent > 3)) refuse_format(what + "es of a posit is 0 to 3");
  if (kind == Kind::fixed && (mantissa < 0 || mantissa > 64)) refuse_format(what + "it has 0 to 64 fraction bits");
  if (kind != Kind::floating) return;
  if (exponent < 1 || exponent > 11) refuse_format(what + "its exponent has 1 to 11 bits");
  if (mantissa < 0) refuse_format(what + "its mantissa has at least 0 bits");
  if (bits != 1 + exponent + mantissa) refuse_format(what + "a sign, exponent and mantissa are not its bits");
  if (bias < -1000 || bias > 1100) refuse_format(what + "its bias is -1000 to 1100");
  const int exponents = (1 << exponent) - (nan == Nan::ieee ? 1 : 0);  // IEEE 754 has no numbers in the last one
  if (exponents - bias > 1024) refuse_format(what + "its largest number is beyond float64's");
  if (nan == Nan::ieee && !infinities) {
    refuse_format(what + "with nan = \"ieee\" it has infinities; take nan = \"one\" or \"none\"");
  }
  if (nan == Nan::ieee && exponent == 1) refuse_format(what + "an exponent of 1 bit leaves none for nan = \"ieee\"");
  if (nan == Nan::ieee && mantissa == 0) refuse_format(what + "without mantissa it has no code for nan = \"ieee\"");
  if (infinities && (nan == Nan::one || nan == Nan::none)) {
    refuse_format(what + "infinities are for nan = \"ieee\" and \"negative_zero\"");
  }
}

double NumberFormat::largest() const {
  if (kind == Kind::power_of_two) return std::ldexp(1.0, 127);
  return decode(largest_code(*this));
}

double NumberFormat::least() const {
  if (kind == Kind::power_of_two) return std::ldexp(1.0, -127);
  if (kind == Kind::floating && !subnormals) return least_normal();
  if (kind == Kind::floating && mantissa == 0) return decode(1);
  return decode(1);
}

double NumberFormat::least_normal() const {
  if (kind == Kind::floating) return std::ldexp(1.0, 1 - bias);
  return least();
}

int NumberFormat::largest_exponent() const {
  return std::ilogb(largest());
}

double NumberFormat::decode(std::uint32_t code) const {
  if ((code & ~mask(bits)) != 0) {
    throw Error("the code " + std::to_string(code) + " has more than the " + std::to_string(bits) + " bits of " + name);
  }
  if (kind == Kind::power_of_two) return code == 255 ? not_a_number : std::ldexp(1.0, static_cast<int>(code) - bias);
  if (kind == Kind::posit) return decode_posit(code, bits, exponent);
  const std::uint32_t sign = 1U << (bits - 1);
  const bool is_negative = (code & sign) != 0;
  if (kind == Kind::fixed) {
    const double whole = static_cast<double>(code) - (is_negative ? std::ldexp(1.0, bits) : 0.0);
    return std::ldexp(whole, -mantissa);
  }
  const std::uint32_t magnitude = code & (sign - 1);
  if (nan == Nan::negative_zero && code == sign) return not_a_number;
  if (magnitude > largest_code(*this)) {
    const bool is_infinite = infinities && (nan == Nan::negative_zero || (magnitude & mask(mantissa)) == 0);
    if (!is_infinite) return not_a_number;
    return is_negative ? -infinity : infinity;
  }
  const int field = static_cast<int>(magnitude >> mantissa);
  const double fraction = magnitude & mask(mantissa);
  double value = 0;
  if (field != 0) value = std::ldexp(fraction + std::ldexp(1.0, mantissa), field - bias - mantissa);
  if (field == 0 && subnormals) value = std::ldexp(fraction, 1 - bias - mantissa);
  return is_negative ? -value : value;
}

double NumberFormat::round(double x, Rounding rounding, double draw) const {
  if (std::isnan(x)) return x;
  if (kind == Kind::power_of_two) {
    if (x <= 0) return not_a_number;
    const double fraction = std::isinf(x) ? 0 : x / std::exp2(std::ilogb(x)) - 1;
    const bool is_up = rounding == Rounding::stochastic    ? fraction > draw
                       : rounding == Rounding::toward_zero ? false
                                                           : fraction >= 0.5;
    const double power = std::isinf(x) ? infinity : std::ldexp(1.0, std::ilogb(x) + (is_up ? 1 : 0));
    if (power > largest()) return saturate ? largest() : not_a_number;
    return std::max(power, least());
  }
  if (kind == Kind::posit) {
    if (rounding != Rounding::stochastic)
      return decode_posit(encode_posit(x, bits, exponent, rounding), bits, exponent);
    const auto code = encode_posit(std::fabs(x), bits, exponent, Rounding::toward_zero);
    const double low = decode_posit(code, bits, exponent);
    const double high = decode_posit(std::min(code + 1, mask(bits - 1)), bits, exponent);
    const double value = high > low && (std::fabs(x) - low) / (high - low) > draw ? high : low;
    return std::copysign(value, x);
  }
  const bool is_negative = std::signbit(x);
  const double magnitude = std::fabs(x);
  const bool has_lower = kind == Kind::fixed && !is_symmetric && is_negative;
  const double most = has_lower ? std::ldexp(1.0, bits - 1 - mantissa) : largest();
  const double beyond = saturate ? most : infinities ? infinity : nan != Nan::none ? not_a_number : most;
  double value = 0;
  if (std::isinf(x)) {
    value = beyond;
  } else if (magnitude > 0) {
    const int least_exponent = kind == Kind::fixed ? -2000 : 1 - bias;
    const int power = std::max(std::ilogb(magnitude), least_exponent);
    const bool is_below = kind == Kind::floating && !subnormals && magnitude < least_normal();
    const int step = kind == Kind::fixed ? -mantissa : is_below ? least_exponent : power - mantissa;
    const double t = std::ldexp(magnitude, -step);
    value = std::ldexp(rounded_integer(t, rounding, draw), step);
    // Without mantissa the even code is that of the even exponent (P3109).
    const bool is_tie = kind == Kind::floating && mantissa == 0 && rounding == Rounding::nearest_even && t == 1.5;
    if (is_tie) value = std::ldexp((power + bias) % 2 == 0 ? 1 : 2, step);
    if (value > most) value = rounding == Rounding::toward_zero ? most : beyond;
  }
  if (value == 0 && !has_negative_zero()) return 0;
  return is_negative ? -value : value;
}

std::uint32_t NumberFormat::encode(double x, Rounding rounding) const {
  const std::uint32_t sign = 1U << (bits - 1);
  if (kind == Kind::posit) return encode_posit(x, bits, exponent, rounding);
  const double value = round(x, rounding);
  if (std::isnan(value)) {
    switch (nan) {
      case Nan::none:
        throw Error(name + " has no code for NaN");
      case Nan::negative_zero:
        return sign;
      case Nan::one:
        return kind == Kind::power_of_two ? 255 : mask(bits - 1) | (std::signbit(x) ? sign : 0);
      case Nan::ieee:
        return (mask(exponent) << mantissa | 1U << (mantissa - 1)) | (std::signbit(x) ? sign : 0);
    }
  }
  if (kind == Kind::power_of_two) return static_cast<std::uint32_t>(std::ilogb(value) + bias);
  if (kind == Kind::fixed) {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(std::ldexp(value, mantissa))) & mask(bits);
  }
  const std::uint32_t negative = std::signbit(value) ? sign : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return negative | (largest_code(*this) + 1);
  if (magnitude == 0) return negative;
  const int power = std::ilogb(magnitude), least_exponent = 1 - bias;
  if (power < least_exponent) {
    return negative | static_cast<std::uint32_t>(std::ldexp(magnitude, mantissa - least_exponent));
  }
  const auto fraction = static_cast<std::uint32_t>(std::ldexp(magnitude, mantissa - power)) & mask(mantissa);
  return negative | static_cast<std::uint32_t>(power + bias) << mantissa | fraction;
}

NumberFormat number_format(const std::string& name) {
  for (const auto& format : named()) {
    if (format.name == name) return format;
  }
  if (auto format = of_pattern(name)) {
    format->check();
    return *format;
  }
  const auto near = nearest(name, number_formats());
  refuse_format("there is no number format \"" + name + "\"" +
                (near.empty() ? "" : "; did you mean \"" + near + "\"?") + "; `vernier formats` lists them");
}

std::vector<std::string> number_formats() {
  std::vector<std::string> names;
  for (const auto& format : named()) names.push_back(format.name);
  for (const char* example : {"e7m16", "k8p4", "k8p3_finite", "int8", "fixed8.4", "posit8_1", "posit16_1"}) {
    names.emplace_back(example);
  }
  return names;
}

}  // namespace vernier
