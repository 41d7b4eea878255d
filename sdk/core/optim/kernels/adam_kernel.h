// One update of Adam or AdamW on the host in float32, on one thread. The results have the bits of LibTorch's
// at::_fused_adam_ and _fused_adamw_ (aten/src/ATen/native/cpu/FusedAdamKernel.cpp). It does not write the divided
// gradient back, which saves an eighth of the memory traffic.
//
// LibTorch compiles its kernel twice for x86-64. The one for AVX2, which also runs on AVX-512, has fused multiply-adds
// wherever the compiler could make them: they round once. The other one rounds twice.
#pragma once

#include <cstdint>

#include "counter_rng.h"

namespace vernier {

// The factors for one tensor in one step, each rounded to float32 as in LibTorch's kernel.
struct AdamNumbers {
  float grad_scale = 1;  // the gradient is divided by it
  float sign = 1;        // -1: maximize
  float l2 = 0;          // Adam: l2 * weight is added to the gradient
  float decay = 1;       // AdamW: the weight is multiplied by it
  float mean_share = 0;  // 1 - beta1: weight of the gradient in exp_avg
  float beta2 = 0;
  float square_share = 0;  // 1 - beta2: weight of the squared gradient in exp_avg_sq
  float step_size = 0;     // learning rate / bias correction of exp_avg
  float correction = 1;    // square root of the bias correction of exp_avg_sq
  float eps = 0;
};

constexpr int line = 16;              // elements of a cache line
constexpr std::int64_t ahead = 1024;  // elements fetched early: a processor's own prefetching stops at each 4 KB page

struct AdamOptions;
struct AdamWOptions;
AdamNumbers adam_numbers(const AdamOptions& options, double lr, double step, float grad_scale);
AdamNumbers adam_numbers(const AdamWOptions& options, double lr, double step, float grad_scale);

// A run of elements that starts with a block of codes. There is one largest magnitude for each block.
struct CodedRun {
  std::int64_t count;
  float* parameter;
  const float* gradient;
  std::uint8_t *exp_avg, *exp_avg_sq;
  float *largest_avg, *largest_sq;
};

struct AdamKernels {
  // LibTorch rounds the last count % 8 elements of a tensor in another way. So if a tensor is divided into chunks, only
  // the last chunk may have a count that is not a multiple of 8.
  void (*update)(const AdamNumbers& numbers, std::int64_t count, float* parameter, const float* gradient,
                 float* exp_avg, float* exp_avg_sq);
  // The same for averages in bfloat16, with stochastic rounding. place: the index of the first element in the tensor.
  void (*update_bfloat16)(const AdamNumbers& numbers, const CountedNoise& noise, std::uint32_t place,
                          std::int64_t count, float* parameter, const float* gradient, std::uint16_t* exp_avg,
                          std::uint16_t* exp_avg_sq);
  // The same for averages in 8-bit codes: unpack(), update() and pack(), block by block in the first cache.
  void (*update_codes)(const AdamNumbers& numbers, CodedRun run);
};

// The next block of a run.
inline CodedRun after_block(CodedRun run, std::int64_t block) {
  return {run.count - block,      run.parameter + block, run.gradient + block, run.exp_avg + block,
          run.exp_avg_sq + block, run.largest_avg + 1,   run.largest_sq + 1};
}

}  // namespace vernier
