// The formulas of activation functions and their derivatives, for one float (V = float) or sixteen. A file that wants
// sixteen defines the functions before `share` for them first.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#ifndef VERNIER_INLINE
#define VERNIER_INLINE inline __attribute__((always_inline))
#endif

namespace vernier {

namespace {

constexpr float highest = 88.0F;  // whose e^x is a float

template <class V>
V number(float value);
template <>
VERNIER_INLINE float number<float>(float value) {
  return value;
}

VERNIER_INLINE float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

VERNIER_INLINE float clamped(float x, float least, float most) {  // NaN stays
  x = x < least ? least : x;
  return x > most ? most : x;
}

// if_below where z is at most `highest`, or no number.
VERNIER_INLINE float where_below(float z, float if_below, float above) {
  return z > highest ? above : if_below;
}
// if_near where z is at most `highest` from 0, or no number.
VERNIER_INLINE float where_near(float z, float if_near, float far) {
  return z > highest || z < -highest ? far : if_near;
}

// e^x with the polynomial of Cephes' expf. An x outside of -87 to `highest` counts as the nearer end.
VERNIER_INLINE float exponential(float x) {
  x = clamped(x, -87.0F, highest);
  constexpr float shift = 12582912.0F;  // 1.5 * 2^23: an addition rounds to an integer, which is in the low bits
  const float shifted = __builtin_fmaf(x, 1.44269504088896341F, shift);
  const float n = shifted - shift;
  float r = __builtin_fmaf(n, -0.693359375F, x);
  r = __builtin_fmaf(n, 2.12194440e-4F, r);
  float p = 1.9875691500e-4F;
  p = __builtin_fmaf(p, r, 1.3981999507e-3F);
  p = __builtin_fmaf(p, r, 8.3334519073e-3F);
  p = __builtin_fmaf(p, r, 4.1665795894e-2F);
  p = __builtin_fmaf(p, r, 1.6666665459e-1F);
  p = __builtin_fmaf(p, r, 5.0000001201e-1F);
  p = __builtin_fmaf(p, r * r, r) + 1.0F;
  const auto power = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23;  // 2^n: the other bits are shifted out
  return p * std::bit_cast<float>(power);
}

// x / (1 + e^(z + rest)), where rest is what rounding has taken off z.
template <class V>
VERNIER_INLINE V share(V x, V z, V rest) {
  const V e = exponential(z), exact = fused(e, rest, e);
  return x / (number<V>(1) + where_below(z, exact, number<V>(std::numeric_limits<float>::infinity())));
}

// Both are x times a sigmoid: 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)), without the difference of nearly equal numbers.
struct GeluTanh {
  // 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3). Hendrycks and Gimpel, arXiv:1606.08415.
  static constexpr double exact_scale = 1.5957691216057308, exact_cubic = 0.044715;
  static constexpr float scale = exact_scale, scale_rest = exact_scale - scale;
  static constexpr float cubic = exact_cubic, cubic_rest = exact_cubic - cubic;
  template <class V>
  static VERNIER_INLINE V of(V x) {
    // z = -scale x (1 + cubic x^2), and the errors of its products: an error of z is one of e^z, |z| times as large.
    const V one = number<V>(1), third = number<V>(cubic), square = x * x, linear = number<V>(-scale) * x;
    const V factor = fused(third, square, one);
    const V factor_rest =
        fused(third, square, one - factor) + fused(third, fused(x, x, -square), number<V>(cubic_rest) * square);
    const V linear_rest = fused(number<V>(-scale), x, -linear) - number<V>(scale_rest) * x;
    const V z = linear * factor;
    const V rest = fused(linear, factor, -z) + fused(linear, factor_rest, linear_rest * factor);
    return share(x, z, where_near(z, rest, number<V>(0)));  // where squares overflow it is not a number
  }
  // For results that are rounded to 16 bits.
  template <class V>
  static VERNIER_INLINE V nearly(V x) {
    return share(x, number<V>(-scale) * x * fused(number<V>(cubic), x * x, number<V>(1)), number<V>(0));
  }
  template <class V>
  static VERNIER_INLINE V derivative(V x) {
    x = clamped(x, -20.0F, 20.0F);  // beyond, it is 1, and less than 1e-34 from 0
    const V one = number<V>(1), square = x * x;
    const V z = number<V>(-scale) * x * fused(number<V>(cubic), square, one);
    const V e = exponential(clamped(z, -highest, highest)), s = one / (one + e);
    const V slope = number<V>(scale) * fused(number<V>(3.0F * cubic), square, one);
    return fused(x * slope * (e * s), s, s);
  }
};
struct Silu {
  template <class V>
  static VERNIER_INLINE V of(V x) {
    return share(x, -x, number<V>(0));
  }
  template <class V>
  static VERNIER_INLINE V nearly(V x) {
    return of(x);
  }
  template <class V>
  static VERNIER_INLINE V derivative(V x) {
    x = clamped(x, -highest, highest);
    const V one = number<V>(1), e = exponential(-x), s = one / (one + e);
    return fused(x * (e * s), s, s);
  }
};

}  // namespace

}  // namespace vernier
