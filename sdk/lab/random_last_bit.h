// Draws the last bit of the numbers of a tensor, for RandomRounding.
#pragma once

#include <ATen/ATen.h>

#include "optim/kernels/counter_rng.h"

namespace vernier {

// Returns true for the dtypes whose last bit can be drawn: float32, bfloat16 and float16.
inline bool has_last_bit(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// Rounds `wide`, float64, into `numbers` at random: up with the probability of its distance from the number below.
// Numbers that are not finite in either stay. Without `wide`, each number goes one unit up or down with a probability
// of 1/12 each, and zeros stay. Has no autograd state: call it below autograd.
void draw_last_bit(const at::Tensor& numbers, const at::Tensor& wide, CountedNoise noise);

}  // namespace vernier
