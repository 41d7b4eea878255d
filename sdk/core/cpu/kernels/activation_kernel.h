// Activation functions over arrays.
#pragma once

#include <cstdint>

namespace vernier {

// Element: float, c10::BFloat16 or c10::Half.
template <class Element>
struct ActivationKernels {
  // y[i] = f(x[i]). y may be x.
  using Forward = void (*)(const Element* x, Element* y, std::int64_t count);
  // dx[i] = dy[i] * f'(x[i]). dx may be dy or x.
  using Backward = void (*)(const Element* dy, const Element* x, Element* dx, std::int64_t count);

  Forward gelu_tanh, silu;
  Backward gelu_tanh_backward, silu_backward;
};

}  // namespace vernier
