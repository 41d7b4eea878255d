// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include <type_traits>

#include "activation_kernel.h"
#include "wide.h"

namespace vernier {

namespace {

template <class V>
V number(float value);
template <>
VERNIER_INLINE __m512 number<__m512>(float value) {
  return _mm512_set1_ps(value);
}
VERNIER_INLINE __m512 clamped(__m512 x, float least, float most) {  // NaN stays
  return _mm512_min_ps(_mm512_set1_ps(most), _mm512_max_ps(_mm512_set1_ps(least), x));
}
VERNIER_INLINE __m512 where_below(__m512 z, __m512 if_below, __m512 above) {
  return _mm512_mask_mov_ps(if_below, _mm512_cmp_ps_mask(z, _mm512_set1_ps(88.0F), _CMP_GT_OQ), above);
}
VERNIER_INLINE __m512 where_near(__m512 z, __m512 if_near, __m512 far) {
  return _mm512_mask_mov_ps(if_near, _mm512_cmp_ps_mask(_mm512_abs_ps(z), _mm512_set1_ps(88.0F), _CMP_GT_OQ), far);
}

}  // namespace

}  // namespace vernier

#include "activation_rules.h"

namespace vernier {

namespace {

template <class Rule, class Element>
VERNIER_INLINE void forward(const Element* x, Element* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += lanes) {
    const __mmask16 which = first(count - i);
    const __m512 at = load(x + i, which);
    if constexpr (std::is_same_v<Element, float>) {
      store(Rule::of(at), y + i, which);
    } else {
      store(Rule::nearly(at), y + i, which);
    }
  }
}
template <class Rule, class Element>
VERNIER_INLINE void backward(const Element* dy, const Element* x, Element* dx, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += lanes) {
    const __mmask16 which = first(count - i);
    store(_mm512_mul_ps(load(dy + i, which), Rule::derivative(load(x + i, which))), dx + i, which);
  }
}

}  // namespace

template <class Element>
void activate_wide(Activation kind, const Element* x, Element* y, std::int64_t count) {
  kind == Activation::silu ? forward<Silu>(x, y, count) : forward<GeluTanh>(x, y, count);
}
template <class Element>
void activate_backward_wide(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count) {
  kind == Activation::silu ? backward<Silu>(dy, x, dx, count) : backward<GeluTanh>(dy, x, dx, count);
}

#define VERNIER_FOR(E)                                                 \
  template void activate_wide(Activation, const E*, E*, std::int64_t); \
  template void activate_backward_wide(Activation, const E*, const E*, E*, std::int64_t);
VERNIER_FOR(float)
VERNIER_FOR(c10::BFloat16)
VERNIER_FOR(c10::Half)

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
