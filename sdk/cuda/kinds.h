// The kinds of floating-point numbers that kernels read and write. All are computed with in float32.
#pragma once

#include "grid.h"

namespace vernier::gpu {

VERNIER_BOTH float half_to_float(std::uint16_t number) {
  const std::uint32_t sign = std::uint32_t{number} >> 15 << 31, exponent = number >> 10 & 31U;
  const std::uint32_t fraction = number & 1023U;
  if (exponent == 0) return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F));
  return bits_as<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}
VERNIER_BOTH float bfloat16_to_float(std::uint16_t number) {
  return bits_as<float>(std::uint32_t{number} << 16);
}
// These round to nearest, ties to even.
VERNIER_BOTH std::uint16_t float_to_bfloat16(float number) {
  if (is_nan(number)) return 0x7fc0;
  const auto bits = bits_as<std::uint32_t>(number);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

VERNIER_BOTH std::uint16_t float_to_half(float number) {
  const std::uint32_t bits = bits_as<std::uint32_t>(number), sign = bits >> 31 << 15, size = bits & 0x7fffffffU;
  std::uint32_t code = 0x7e00;  // NaN
  if (size < 0x38800000U) {     // below 2^-14 the last bit is that of 0.5 in float32: an addition rounds to it
    code = bits_as<std::uint32_t>(bits_as<float>(size) + 0.5F) - 0x3f000000U;
  } else if (size < 0x477ff000U) {
    code = (size - (112U << 23) + 0xfffU + (size >> 13 & 1U)) >> 13;
  } else if (size <= 0x7f800000U) {
    code = 0x7c00;
  }
  return static_cast<std::uint16_t>(sign | code);
}

struct Float32 {
  using Number = float;
  static VERNIER_BOTH float wide(float x) { return x; }
  static VERNIER_BOTH float narrow(float x) { return x; }
};
struct Bfloat16 {
  using Number = std::uint16_t;
  static VERNIER_BOTH float wide(std::uint16_t x) { return bfloat16_to_float(x); }
  static VERNIER_BOTH std::uint16_t narrow(float x) { return float_to_bfloat16(x); }
};
struct Half {
  using Number = std::uint16_t;
  static VERNIER_BOTH float wide(std::uint16_t x) { return half_to_float(x); }
  static VERNIER_BOTH std::uint16_t narrow(float x) { return float_to_half(x); }
};

// Calls body(Float32()), body(Bfloat16()) or body(Half()).
template <class Body>
Trouble with_kind(Kind kind, const Body& body) {
  if (kind == Kind::bfloat16) return body(Bfloat16());
  return kind == Kind::half ? body(Half()) : body(Float32());
}

}  // namespace vernier::gpu
