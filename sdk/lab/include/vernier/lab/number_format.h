// Number formats of at most 24 bits: floating-point formats of any width, fixed point and posits.
//
//   const auto format = vernier::number_format("e4m3");
//   format.round(0.3);   // 0.3125, the nearest number of the format
//   format.encode(0.3);  // 0x2a, its code
//   format.decode(0x2a);
//
// tensor_format.h rounds tensors. docs/guides/formats.md lists the named formats and their sources. A function may be
// called on any thread.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

enum class Rounding {
  nearest_even,  // ties go to the number whose code is even
  nearest_away,  // ties go away from zero
  toward_zero,
  stochastic  // up with the probability of the distance that is left; its mean is exact
};

// Returns a rounding by its word in TOML: nearest | away | zero | stochastic. Throws Error for another word.
VERNIER_API Rounding rounding_named(const std::string& word);

struct VERNIER_API NumberFormat {
  enum class Kind {
    floating,      // sign, exponent, mantissa
    fixed,         // two's complement; `mantissa` is the number of fraction bits
    posit,         // Posit Standard; `exponent` is es
    power_of_two,  // an exponent alone, without sign and zero: e8m0, the format of scales
  };
  enum class Nan {
    none,
    ieee,           // the largest exponent is for NaN and infinities
    one,            // the largest magnitude is NaN, as in OCP's e4m3
    negative_zero,  // the code of -0 is NaN, as in the fnuz formats and P3109
  };

  std::string name;
  Kind kind = Kind::floating;
  int bits = 8;  // bits of a code
  int exponent = 4, mantissa = 3, bias = 7;
  Nan nan = Nan::ieee;
  bool infinities = true;    // with Nan::negative_zero: the largest magnitude is an infinity
  bool subnormals = true;    // false: numbers below the least normal one become 0 or that one
  bool saturate = false;     // true: what is beyond the largest number becomes the largest; false: infinity or NaN
  bool is_symmetric = true;  // fixed: there is no code for -2^(bits - 1)

  // Returns the number of a code. Throws Error if the code has more bits than the format.
  double decode(std::uint32_t code) const;
  // Returns the code of the number that x rounds to. Throws Error for NaN if the format has none.
  std::uint32_t encode(double x, Rounding rounding = Rounding::nearest_even) const;
  // Returns the number that x rounds to. NaN stays NaN even where the format has none. An infinity becomes the largest
  // number if the format saturates or has neither infinity nor NaN. x is exact: nothing is rounded twice. draw: for
  // stochastic rounding, uniform in [0, 1).
  double round(double x, Rounding rounding = Rounding::nearest_even, double draw = 0) const;

  double largest() const;        // the largest finite number
  double least() const;          // the least positive number
  double least_normal() const;   // floating formats: the least normal number; others: least()
  int largest_exponent() const;  // floor(log2(largest()))
  bool has_negative_zero() const { return kind == Kind::floating && nan != Nan::negative_zero; }

  // Throws Error with Error::Kind::configuration for a format that cannot exist, and says why.
  void check() const;
};

// Returns a format by name: one of number_formats(), or one of a pattern, of which these are examples: e3m2, a
// floating-point format with the rules of IEEE 754, or without NaN and infinities if it has at most 6 bits; int8;
// fixed8.4 with 4 fraction bits; posit8_1 with es 1; k8p4 of IEEE P3109, and k8p4_finite without infinities. Formats of
// at most 8 bits saturate. Throws Error with Error::Kind::configuration for another name, and suggests the nearest.
VERNIER_API NumberFormat number_format(const std::string& name);

// Returns the named formats, and one example of each pattern.
VERNIER_API std::vector<std::string> number_formats();

}  // namespace vernier
