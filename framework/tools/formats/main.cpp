// `vernier formats`: the number formats that precision/format takes, their codes, and how a number is rounded.
#include <vernier/error.h>
#include <vernier/lab/tensor_format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <iostream>

#include "common/verb.h"

namespace {

namespace po = boost::program_options;
using namespace vernier;

constexpr const char* usage = R"(usage: vernier formats [FORMAT] [--table | --round NUMBER [--rounding WORD]]

Without FORMAT: lists the formats that precision/format takes. FORMAT: a name of the list, or of a pattern: e3m2, int6,
fixed8.4, posit8_1, k8p4.

  --list               the same list
  --table              all codes with their numbers; for formats of at most 16 bits
  --round NUMBER       the neighbours of NUMBER, which of them it becomes, and why; --round=-0.3 for a negative one
  --rounding WORD      nearest (the default; ties to even), away, zero
)";

// The shortest text that is read back as the same number.
std::string text_of(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  return {text, end};
}

// Six digits, for people.
std::string short_text(double x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

// "2^-9" for a power of two whose decimals are long.
std::string power_or_text(double x) {
  const bool is_power = x > 0 && std::isfinite(x) && std::ldexp(1.0, std::ilogb(x)) == x;
  return is_power && (x < 0.1 || x > 1000) ? "2^" + std::to_string(std::ilogb(x)) : short_text(x);
}

std::string hex(std::uint32_t code, int bits) {
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw((bits + 3) / 4) << code;
  return text.str();
}

std::string kind_of(const NumberFormat& f) {
  const auto number = [](int n) { return std::to_string(n); };
  const auto bits = [&](int n, const char* what) { return number(n) + " " + what + (n == 1 ? " bit" : " bits"); };
  switch (f.kind) {
    case NumberFormat::Kind::fixed:
      return "fixed point, " + bits(f.mantissa, "fraction");
    case NumberFormat::Kind::posit:
      return "posit, es " + number(f.exponent);
    case NumberFormat::Kind::power_of_two:
      return "powers of two, for scales";
    case NumberFormat::Kind::floating:
      break;
  }
  return bits(f.exponent, "exponent") + ", " + bits(f.mantissa, "mantissa") + ", bias " + number(f.bias);
}

std::string specials_of(const NumberFormat& f) {
  if (f.kind == NumberFormat::Kind::posit) return "NaR";
  const std::string nan = f.nan == NumberFormat::Nan::none ? "no NaN" : "NaN";
  return nan + (f.infinities ? ", infinities" : ", no infinities");
}

void print_row(const std::string& name, const NumberFormat& f, const std::string& rest) {
  std::cout << "  " << std::left << std::setw(14) << name << std::setw(6) << f.bits << std::setw(16)
            << power_or_text(f.largest()) << std::setw(10) << power_or_text(f.least()) << rest << '\n';
}

std::string scales_of(const TensorFormat& f) {
  static const char* const rules[] = {"floor", "ceil", "even", "rceil", "nearest"};
  return "blocks of " + std::to_string(f.block) + " share a scale in " + f.scale.name + ", rule " +
         rules[static_cast<std::size_t>(f.rule)] + (f.tensor_scale ? ", and the tensor has one in float32" : "");
}

int list() {
  std::cout << "  format        bits  largest         least\n";
  for (const auto& name : number_formats()) {
    const auto format = number_format(name);
    print_row(name, format, kind_of(format) + "; " + specials_of(format));
  }
  std::cout << "Numbers with the scale of a block:\n";
  for (const auto& name : block_formats()) {
    const auto format = tensor_format(name);
    print_row(name, format.element, format.element.name + "; " + scales_of(format));
  }
  std::cout << "Patterns: e<E>m<M>, int<B>, fixed<B>.<F>, posit<B>_<ES>, k<K>p<P>[_finite] (IEEE P3109)\n";
  return 0;
}

int describe(const TensorFormat& format) {
  const auto& f = format.element;
  const auto line = [](const char* what, const std::string& text) {
    std::cout << "  " << std::left << std::setw(16) << what << text << '\n';
  };
  std::cout << format.name << ": " << kind_of(f) << '\n';
  line("bits", std::to_string(f.bits));
  line("largest", text_of(f.largest()));
  if (f.kind == NumberFormat::Kind::floating) line("least normal", power_or_text(f.least_normal()));
  line("least", power_or_text(f.least()));
  line("special", specials_of(f));
  const char* const other = f.infinities ? "infinity" : f.nan == NumberFormat::Nan::none ? "the largest" : "NaN";
  line("beyond", std::string("becomes ") + (f.saturate ? "the largest" : other));
  if (format.block != 0) line("scales", scales_of(format));
  return 0;
}

int print_table(const NumberFormat& f) {
  if (f.bits > 16) throw Error(f.name + " has " + std::to_string(f.bits) + " bits, and --table is for 16 at most");
  for (std::uint32_t code = 0; code < 1U << f.bits; ++code) {
    std::cout << hex(code, f.bits) << ' ' << text_of(f.decode(code)) << '\n';
  }
  return 0;
}

double number_of(const std::string& text) {
  double x = 0;
  const auto read = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), text.data() + text.size(), x);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
    throw Error("--round needs a number such as 0.3 or 1e-3, not '" + text + "'");
  }
  return x;
}

// Steps from one number of a format to the next one below or above in value.
double neighbour(const NumberFormat& f, double x, bool is_above) {
  const double down = f.round(x, Rounding::toward_zero);  // the neighbour nearer to zero
  const bool wants_outer = is_above == (x >= 0);
  if (!wants_outer || down == x) return down;
  // The next code in magnitude, unless there is none.
  if (f.kind == NumberFormat::Kind::fixed) {
    const double next = std::fabs(down) + std::ldexp(1.0, -f.mantissa);
    return std::copysign(next <= f.largest() || (x < 0 && !f.is_symmetric) ? next : std::fabs(down), x);
  }
  if (std::fabs(down) >= f.largest()) return down;
  if (down == 0) return std::copysign(f.least(), x);
  return std::copysign(f.decode(f.encode(std::fabs(down)) + 1), x);
}

int print_rounding(const NumberFormat& f, const std::string& text, const std::string& word) {
  const double x = number_of(text);
  const auto rounding = rounding_named(word);
  if (rounding == Rounding::stochastic) throw Error("--rounding stochastic draws; take nearest, away or zero");
  const double y = f.round(x, rounding);
  const auto code = [&](double value) {
    if (std::isnan(value) && f.nan == NumberFormat::Nan::none) return std::string("no code");
    return "code " + hex(f.encode(value), f.bits);
  };
  std::cout << text_of(x) << " becomes " << text_of(y) << " (" << code(y) << ")\n";
  if (std::isnan(x) || std::isinf(x) || std::isnan(y)) {
    std::cout << "  " << f.name << " has " << specials_of(f) << "; its largest number is " << text_of(f.largest())
              << '\n';
    return 0;
  }
  const double low = neighbour(f, x, false), high = neighbour(f, x, true);
  if (y == x) {
    std::cout << "  it is a number of the format\n";
  } else if (std::fabs(x) > f.largest()) {
    std::cout << "  it is beyond the largest number, " << text_of(f.largest())
              << (f.saturate ? ", and the format saturates\n" : "\n");
  } else {
    const double below = x - low, above = high - x;
    std::cout << "  below  " << text_of(low) << " (" << code(low) << "), " << short_text(below) << " away\n"
              << "  above  " << text_of(high) << " (" << code(high) << "), " << short_text(above) << " away\n";
    std::cout << "  "
              << (rounding == Rounding::toward_zero     ? "it goes to the neighbour nearer to zero"
                  : f.kind == NumberFormat::Kind::posit ? "posits round the bits of the code, not the value"
                  : below != above                      ? "it goes to the nearer one"
                  : rounding == Rounding::nearest_even  ? "it is a tie, which goes to the even code"
                                                        : "it is a tie, which goes away from zero")
              << '\n';
  }
  if (y != x && x != 0) std::cout << "  relative error " << short_text(std::fabs(y - x) / std::fabs(x)) << '\n';
  return 0;
}

int run(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() > 1) throw Error("name one format; see vernier formats --help");
  const bool has_table = given.count("table") != 0, rounds = given.count("round") != 0;
  if (words.empty()) {
    if (has_table || rounds) throw Error("name the format: vernier formats e4m3 --table");
    return list();
  }
  const auto format = tensor_format(words.front());
  if (has_table && rounds) throw Error("take --table or --round, not both");
  if (has_table) return print_table(format.element);
  if (rounds)
    return print_rounding(format.element, given["round"].as<std::string>(), word_or(given, "rounding", "nearest"));
  return describe(format);
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description known;
  known.add_options()("list", "")("table", "")("round", po::value<std::string>())("rounding", po::value<std::string>());
  return call_verb({"formats", usage, known, run}, argc, argv);
}
