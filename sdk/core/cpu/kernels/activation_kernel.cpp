// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "activation_kernel.h"

#include "activation_rules.h"
#include "cpu/processor.h"

namespace vernier {

namespace {

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
__attribute__((target("avx2,fma"))) void with_avx2(Body body, std::int64_t count) {
  VERNIER_LOOP
}

}  // namespace

bool has_activation_kernels(bool in_half) {
  return in_half ? has_avx512() : has_avx2();
}

template <class Element>
void activate(Activation kind, const Element* x, Element* y, std::int64_t count) {
  if (has_avx512()) return activate_wide(kind, x, y, count);
  if (kind == Activation::silu) return with_avx2(Forward<Silu, Element>{x, y}, count);
  with_avx2(Forward<GeluTanh, Element>{x, y}, count);
}

template <class Element>
void activate_backward(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count) {
  if (has_avx512()) return activate_backward_wide(kind, dy, x, dx, count);
  if (kind == Activation::silu) return with_avx2(Backward<Silu, Element>{dy, x, dx}, count);
  with_avx2(Backward<GeluTanh, Element>{dy, x, dx}, count);
}

template <>
void activate(Activation kind, const c10::Half* x, c10::Half* y, std::int64_t count) {
  activate_wide(kind, x, y, count);
}
template <>
void activate_backward(Activation kind, const c10::Half* dy, const c10::Half* x, c10::Half* dx, std::int64_t count) {
  activate_backward_wide(kind, dy, x, dx, count);
}

template void activate(Activation, const float*, float*, std::int64_t);
template void activate(Activation, const c10::BFloat16*, c10::BFloat16*, std::int64_t);
template void activate_backward(Activation, const float*, const float*, float*, std::int64_t);
template void activate_backward(Activation, const c10::BFloat16*, const c10::BFloat16*, c10::BFloat16*, std::int64_t);

}  // namespace vernier
