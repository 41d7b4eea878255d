// Plain loops. Compiled with vectorisation, and without the compiler's own choice of fused multiplications
// (CMakeLists.txt).
#include "element_kernel.h"

#include "base/kernels.h"
#include "base/targets.h"

namespace vernier {

namespace {

// Sets each weight to law(i, gradient, weight).
template <bool divides, bool adds_l2, class Law>
VERNIER_INLINE void each_element(const ElementRun& run, const Law& law) {
  const float* __restrict const gradient = run.gradient;
  float* __restrict const parameter = run.parameter;
  const float grad_scale = run.grad_scale, l2 = run.l2;
  for (std::int64_t i = 0; i < run.count; ++i) {
    float g = gradient[i];
    if constexpr (divides) g = g / grad_scale;
    if constexpr (adds_l2) g = g + l2 * parameter[i];
    parameter[i] = law(i, g, parameter[i]);
  }
}

template <class Law>
VERNIER_INLINE void each_element(const ElementRun& run, const Law& law) {
  const bool divides = run.grad_scale != 1, adds_l2 = run.l2 != 0;
  if (divides && adds_l2) return each_element<true, true>(run, law);
  if (divides) return each_element<true, false>(run, law);
  if (adds_l2) return each_element<false, true>(run, law);
  each_element<false, false>(run, law);
}

template <bool centered, bool has_momentum>
VERNIER_INLINE void rmsprop(const RMSpropNumbers n, const ElementRun& run) {
  float* __restrict const square_avg = run.state[0];
  [[maybe_unused]] float* __restrict const grad_avg = run.state[1];
  [[maybe_unused]] float* __restrict const buffer = run.state[centered ? 2 : 1];
  each_element(
      run, [=](std::int64_t i, float g, float weight) __attribute__((always_inline)) {
        const float square = square_avg[i] * n.alpha + n.square_share * g * g;
        square_avg[i] = square;
        float variance = square;
        if constexpr (centered) {
          const float mean = grad_avg[i] + n.square_share * (g - grad_avg[i]);
          grad_avg[i] = mean;
          variance = square - mean * mean;
          variance = variance < 0 ? 0 : variance;  // NaN stays
        }
        const float direction = g / (__builtin_sqrtf(variance) + n.eps);
        if constexpr (has_momentum) {
          const float moved = buffer[i] * n.momentum + direction;
          buffer[i] = moved;
          return weight - n.lr * moved;
        } else {
          return weight - n.lr * direction;
        }
      });
}

VERNIER_INLINE void rmsprop_as_asked(const RMSpropNumbers& n, const ElementRun& run) {
  if (n.centered && n.momentum != 0) return rmsprop<true, true>(n, run);
  if (n.centered) return rmsprop<true, false>(n, run);
  if (n.momentum != 0) return rmsprop<false, true>(n, run);
  rmsprop<false, false>(n, run);
}

VERNIER_INLINE void adagrad(const AdagradNumbers n, const ElementRun& run) {
  float* __restrict const sum = run.state[0];
  each_element(
      run, [=](std::int64_t i, float g, float weight) __attribute__((always_inline)) {
        const float squares = sum[i] + g * g;
        sum[i] = squares;
        return weight - n.lr * g / (__builtin_sqrtf(squares) + n.eps);
      });
}

VERNIER_INLINE void lion(const LionNumbers n, const ElementRun& run) {
  float* __restrict const exp_avg = run.state[0];
  each_element(
      run, [=](std::int64_t i, float g, float weight) __attribute__((always_inline)) {
        const float mean = exp_avg[i], way = mean * n.beta1 + g * n.share1;
        exp_avg[i] = mean * n.beta2 + g * n.share2;
        const float sign = way > 0 ? 1.0F : way < 0 ? -1.0F : way;  // 0 and NaN stay
        return weight * n.decay - n.lr * sign;
      });
}

void rmsprop_plain(const RMSpropNumbers& numbers, const ElementRun& run) {
  rmsprop_as_asked(numbers, run);
}
void adagrad_plain(const AdagradNumbers& numbers, const ElementRun& run) {
  adagrad(numbers, run);
}
void lion_plain(const LionNumbers& numbers, const ElementRun& run) {
  lion(numbers, run);
}
VERNIER_AVX2 void rmsprop_avx2(const RMSpropNumbers& numbers, const ElementRun& run) {
  rmsprop_as_asked(numbers, run);
}
VERNIER_AVX2 void adagrad_avx2(const AdagradNumbers& numbers, const ElementRun& run) {
  adagrad(numbers, run);
}
VERNIER_AVX2 void lion_avx2(const LionNumbers& numbers, const ElementRun& run) {
  lion(numbers, run);
}

constexpr ElementKernels plain_kernels = {rmsprop_plain, adagrad_plain, lion_plain},
                         avx2_kernels = {rmsprop_avx2, adagrad_avx2, lion_avx2};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::plain, plain_kernels, ElementKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, avx2_kernels, ElementKernels)

}  // namespace vernier
