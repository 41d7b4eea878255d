// One update of Adam or AdamW on the host in float32: the arithmetic of LibTorch's at::_fused_adam_ and _fused_adamw_
// (aten/src/ATen/native/cpu/FusedAdamKernel.cpp), on one thread, to the last bit. What it leaves out is to write the
// divided gradient back, an eighth of all the bytes that it moves.
#pragma once

#include <cstdint>

#include "counted_noise.h"

namespace vernier {

// LibTorch compiles its kernel twice for x86-64. The one for AVX2, which it takes with AVX-512 too, multiplies and adds
// with one rounding where the compiler could; the other rounds twice.
enum class Rounding { once, twice };

// Of one tensor in one step; each rounded to float32 as there.
struct AdamNumbers {
  float grad_scale = 1;   // divides the gradient
  float sign = 1;         // -1: maximize
  float l2 = 0;           // Adam: this much of the weight is added to the gradient
  float decay = 1;        // AdamW: multiplies the weight
  float mean_share = 0;   // of the gradient in exp_avg
  float beta2 = 0;
  float square_share = 0;  // of the squared gradient in exp_avg_sq
  float step_size = 0;     // the rate over the mean's bias correction
  float correction = 1;    // root of the square's bias correction
  float eps = 0;
};

struct AdamOptions;
struct AdamWOptions;
AdamNumbers adam_numbers(const AdamOptions& options, double lr, double step, float grad_scale, Rounding rounding);
AdamNumbers adam_numbers(const AdamWOptions& options, double lr, double step, float grad_scale, Rounding rounding);

// The last count % 8 elements are LibTorch's rest, which it rounds elsewhere: a tensor that is cut into pieces has them in
// the last one alone.
void adam_update(Rounding rounding, const AdamNumbers& numbers, std::int64_t count, float* parameter,
                 const float* gradient, float* exp_avg, float* exp_avg_sq);

// The same where the two averages are kept in bfloat16, rounded by chance: `place` is the first element's in the tensor.
void adam_update_bfloat16(Rounding rounding, const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                          std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                          std::uint16_t* exp_avg_sq);

}  // namespace vernier
