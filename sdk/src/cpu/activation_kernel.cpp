// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "activation_kernel.h"

#include <bit>
#include <limits>

namespace vernier {

namespace {

#define VERNIER_INLINE inline __attribute__((always_inline))

VERNIER_INLINE float widened(float value) {
  return value;
}
VERNIER_INLINE float widened(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.x) << 16);
}
VERNIER_INLINE void store(float value, float& to) {
  to = value;
}
// To the nearest, ties to even; NaN as c10::BFloat16 writes it.
VERNIER_INLINE void store(float value, c10::BFloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  to.x = static_cast<std::uint16_t>(value == value ? rounded : 0x7FC0U);
}

VERNIER_INLINE float clamped(float x, float least, float most) {  // NaN stays
  x = x < least ? least : x;
  return x > most ? most : x;
}

constexpr float highest = 88.0F;  // whose e^x is a float

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
VERNIER_INLINE float share(float x, float z, float rest) {
  float e = exponential(z);
  e = __builtin_fmaf(e, rest, e);
  return x / (1.0F + (z > highest ? std::numeric_limits<float>::infinity() : e));
}

// Both are x times a sigmoid: 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)), without the difference of nearly equal numbers.
struct GeluTanh {
  // 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3). Hendrycks and Gimpel, arXiv:1606.08415.
  static constexpr double exact_scale = 1.5957691216057308, exact_cubic = 0.044715;
  static constexpr float scale = exact_scale, scale_rest = exact_scale - scale;
  static constexpr float cubic = exact_cubic, cubic_rest = exact_cubic - cubic;
  static VERNIER_INLINE float of(float x) {
    // z = -scale x (1 + cubic x^2), and the errors of its products: an error of z is one of e^z, |z| times as large.
    const float square = x * x, linear = -scale * x;
    const float factor = __builtin_fmaf(cubic, square, 1.0F);
    const float factor_rest = __builtin_fmaf(cubic, square, 1.0F - factor) +
                              __builtin_fmaf(cubic, __builtin_fmaf(x, x, -square), cubic_rest * square);
    const float linear_rest = __builtin_fmaf(-scale, x, -linear) - scale_rest * x;
    const float z = linear * factor;
    const float rest = __builtin_fmaf(linear, factor, -z) + __builtin_fmaf(linear, factor_rest, linear_rest * factor);
    return share(x, z, z > highest || z < -highest ? 0.0F : rest);  // where squares overflow it is no number
  }
  static VERNIER_INLINE float derivative(float x) {
    x = clamped(x, -20.0F, 20.0F);  // beyond, it is 0 and 1
    const float square = x * x;
    const float e = exponential(-scale * x * __builtin_fmaf(cubic, square, 1.0F));
    const float s = 1.0F / (1.0F + e);
    const float slope = scale * __builtin_fmaf(3.0F * cubic, square, 1.0F);
    return __builtin_fmaf(x * slope * (e * s), s, s);
  }
};
struct Silu {
  static VERNIER_INLINE float of(float x) { return share(x, -x, 0.0F); }
  static VERNIER_INLINE float derivative(float x) {
    x = clamped(x, -highest, highest);
    const float e = exponential(-x), s = 1.0F / (1.0F + e);
    return __builtin_fmaf(x * (e * s), s, s);
  }
};

template <class Rule, class Element>
struct Forward {
  const Element* x;
  Element* y;
  VERNIER_INLINE void operator()(std::int64_t i) const { store(Rule::of(widened(x[i])), y[i]); }
};
template <class Rule, class Element>
struct Backward {
  const Element *dy, *x;
  Element* dx;
  VERNIER_INLINE void operator()(std::int64_t i) const {
    store(widened(dy[i]) * Rule::derivative(widened(x[i])), dx[i]);
  }
};

// An element depends on no other, so the compiler need not ask whether the arrays overlap.
#define VERNIER_LOOP _Pragma("GCC ivdep") for (std::int64_t i = 0; i < count; ++i) body(i);

template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"))) void with_avx512(
    Body body, std::int64_t count) {
  VERNIER_LOOP
}
template <class Body>
__attribute__((target("avx2,fma"))) void with_avx2(Body body, std::int64_t count) {
  VERNIER_LOOP
}

template <class Body>
void run(Body body, std::int64_t count) {
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                                 __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  has_avx512 ? with_avx512(body, count) : with_avx2(body, count);
}

}  // namespace

bool has_activation_kernels() {
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return has;
}

template <class Element>
void activate(Activation kind, const Element* x, Element* y, std::int64_t count) {
  if (kind == Activation::silu) return run(Forward<Silu, Element>{x, y}, count);
  run(Forward<GeluTanh, Element>{x, y}, count);
}

template <class Element>
void activate_backward(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count) {
  if (kind == Activation::silu) return run(Backward<Silu, Element>{dy, x, dx}, count);
  run(Backward<GeluTanh, Element>{dy, x, dx}, count);
}

template void activate(Activation, const float*, float*, std::int64_t);
template void activate(Activation, const c10::BFloat16*, c10::BFloat16*, std::int64_t);
template void activate_backward(Activation, const float*, const float*, float*, std::int64_t);
template void activate_backward(Activation, const c10::BFloat16*, const c10::BFloat16*, c10::BFloat16*, std::int64_t);

}  // namespace vernier
