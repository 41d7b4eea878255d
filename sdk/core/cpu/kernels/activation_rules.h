// Definitions of activation_kernel.h in the terms of simd_avx512.h or simd_avx2.h. Include one of them before it.
#pragma once

namespace vernier {

namespace {

constexpr float highest = 88.0F;  // e^x is still a finite float

VERNIER_INLINE Numbers clamped(Numbers x, float least, float most) {  // NaN stays
  return smaller(filled(most), larger(filled(least), x));
}

// x / (1 + e^(z + rest)), where rest is what rounding has taken off z.
VERNIER_INLINE Numbers share(Numbers x, Numbers z, Numbers rest) {
  const Numbers e = exponential_of_activation(z), exact = fused(e, rest, e);
  return x / (filled(1) + where_above(z, filled(highest), filled(infinity), exact));
}

// Both are x times a sigmoid: 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)), without the difference of nearly equal numbers.
// The plain loop: y[i] = 0.5 * x[i] * (1 + tanh(sqrt(2 / pi) * (x[i] + 0.044715 * x[i] * x[i] * x[i]))).
struct GeluTanh {
  // 2u = 2 sqrt(2 / pi) (x + 0.044715 x^3). Hendrycks and Gimpel, arXiv:1606.08415.
  static constexpr double exact_scale = 1.5957691216057308, exact_cubic = 0.044715;
  static constexpr float scale = exact_scale, scale_rest = exact_scale - scale;
  static constexpr float cubic = exact_cubic, cubic_rest = exact_cubic - cubic;
  static VERNIER_INLINE Numbers of(Numbers x) {
    // z = -scale x (1 + cubic x^2), and the errors of its products: an error of z is one of e^z, |z| times as large.
    const Numbers one = filled(1), third = filled(cubic), square = x * x, linear = filled(-scale) * x;
    const Numbers factor = fused(third, square, one);
    const Numbers factor_rest =
        fused(third, square, one - factor) + fused(third, fused(x, x, -square), filled(cubic_rest) * square);
    const Numbers linear_rest = fused(filled(-scale), x, -linear) - filled(scale_rest) * x;
    const Numbers z = linear * factor;
    const Numbers rest = fused(linear, factor, -z) + fused(linear, factor_rest, linear_rest * factor);
    // The rest is not a number where squares overflow.
    return share(x, z, where_above(magnitude(z), filled(highest), filled(0), rest));
  }
  // For results that are rounded to 16 bits.
  static VERNIER_INLINE Numbers nearly(Numbers x) {
    return share(x, filled(-scale) * x * fused(filled(cubic), x * x, filled(1)), filled(0));
  }
  static VERNIER_INLINE Numbers derivative(Numbers x) {
    x = clamped(x, -20.0F, 20.0F);  // beyond, it is 1, and less than 1e-34 from 0
    const Numbers one = filled(1), square = x * x;
    const Numbers z = filled(-scale) * x * fused(filled(cubic), square, one);
    const Numbers e = exponential_of_activation(clamped(z, -highest, highest)), s = one / (one + e);
    const Numbers slope = filled(scale) * fused(filled(3.0F * cubic), square, one);
    return fused(x * slope * (e * s), s, s);
  }
};

// The plain loop: y[i] = x[i] / (1 + exp(-x[i])).
struct Silu {
  static VERNIER_INLINE Numbers of(Numbers x) { return share(x, -x, filled(0)); }
  static VERNIER_INLINE Numbers nearly(Numbers x) { return of(x); }
  static VERNIER_INLINE Numbers derivative(Numbers x) {
    x = clamped(x, -highest, highest);
    const Numbers one = filled(1), e = exponential_of_activation(-x), s = one / (one + e);
    return fused(x * (e * s), s, s);
  }
};

template <class Rule, class Element>
void activate(const Element* x, Element* y, std::int64_t count) {
  // AVX2 takes of() for 16 bits too: nearly() differs from it in the last bit of some results.
  constexpr bool is_exact = std::is_same_v<Element, float> || instructions == Instructions::avx2;
  along(count, [&](auto i, auto which, int) VERNIER_BODY {
    const Numbers at = load(x + i, which);
    store(is_exact ? Rule::of(at) : Rule::nearly(at), y + i, which);
  });
}
// The plain loop: dx[i] = dy[i] * (the derivative of the rule's y at x[i]).
template <class Rule, class Element>
void activate_backward(const Element* dy, const Element* x, Element* dx, std::int64_t count) {
  along(count, [&](auto i, auto which, int)
                   VERNIER_BODY { store(load(dy + i, which) * Rule::derivative(load(x + i, which)), dx + i, which); });
}

template <class Element>
constexpr ActivationKernels<Element> activation_kernels = {activate<GeluTanh, Element>, activate<Silu, Element>,
                                                           activate_backward<GeluTanh, Element>,
                                                           activate_backward<Silu, Element>};

}  // namespace

VERNIER_DEFINE_KERNELS(instructions, activation_kernels<float>, ActivationKernels<float>)
VERNIER_DEFINE_KERNELS(instructions, activation_kernels<c10::BFloat16>, ActivationKernels<c10::BFloat16>)

}  // namespace vernier
