// Activation functions over arrays, for processors with AVX2 and FMA.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace vernier {

enum class Activation { gelu_tanh, silu };

// Whether the functions below may be called on this processor.
bool has_activation_kernels();

// y = f(x), element by element. Element: float or c10::BFloat16. y may be x.
template <class Element>
void activate(Activation kind, const Element* x, Element* y, std::int64_t count);

// dx = dy f'(x). dx may be dy or x.
template <class Element>
void activate_backward(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count);

}  // namespace vernier
