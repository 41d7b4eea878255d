// Rounds float32 numbers to a floating-point or fixed-point format, on one thread. Each number is rounded by itself,
// and without an inexact operation before, so the bits depend neither on the vector instructions nor on the division of
// a tensor.
#pragma once

#include <vernier/lab/number_format.h>

#include <cstdint>
#include <limits>

#include "optim/kernels/counter_rng.h"

namespace vernier {

struct FormatRule {
  explicit FormatRule(const NumberFormat& format);

  double least_power, step_of_power;  // a step is max(2^floor(log2 |x|), least_power) * step_of_power
  double flushed_below = 0;           // below it a step is least_power: formats without subnormals
  double largest, lowest;             // magnitudes of the largest finite numbers; lowest: for negative x
  double beyond, beyond_below;        // magnitudes that replace larger ones
  bool has_negative_zero;
  bool is_narrow;  // float32 has room for all steps and their inverses
};

// The random bits of stochastic rounding, by the place of an element in its tensor.
struct FormatDraws {
  CountedNoise noise;
  int bits;  // 1 to 23
};

struct FormatKernels {
  // y[i] = the nearest number to x[i] / scale[i], times scale[i]. scale: nullptr for 1. `place`: the place of x[0] in
  // its tensor. y may be x.
  void (*round_to_format)(const FormatRule& rule, Rounding rounding, const FormatDraws& draws, const float* x,
                          const float* scale, float* y, std::int64_t count, std::uint32_t place);
  // most[i] = the larger of most[i] and |x[i]|; NaN if either is NaN.
  void (*raise_to_magnitudes)(const float* x, float* most, std::int64_t count);
};

}  // namespace vernier
