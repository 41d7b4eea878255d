// Activation functions over arrays, for processors with AVX2 and FMA.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace vernier {

enum class Activation { gelu_tanh, silu };

// True if the functions below may be called on this processor; c10::Half needs AVX-512.
bool has_activation_kernels(bool in_half);

// y = f(x), element by element. Element: float, c10::BFloat16 or c10::Half. y may be x.
template <class Element>
void activate(Activation kind, const Element* x, Element* y, std::int64_t count);

// dx = dy f'(x). dx may be dy or x.
template <class Element>
void activate_backward(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count);

// Both with AVX-512, sixteen elements at a time.
template <class Element>
void activate_wide(Activation kind, const Element* x, Element* y, std::int64_t count);
template <class Element>
void activate_backward_wide(Activation kind, const Element* dy, const Element* x, Element* dx, std::int64_t count);

}  // namespace vernier
