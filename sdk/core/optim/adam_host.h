// Adam and AdamW on the host, in one pass over many tensors. Threads work on chunks, so averages with fewer bits need
// float32 memory for one chunk at a time. The bits do not depend on the number of threads.
#pragma once

#include <vernier/optim.h>

#include <cstdint>
#include <vector>

#include "optim/kernels/adam_kernel.h"

namespace vernier {

// A parameter with its gradient and state, all dense and in one memory layout.
struct HostTensor {
  AdamNumbers numbers;
  CountedNoise noise;  // only for AdamState::bfloat16
  std::int64_t count;
  float* parameter;
  const float* gradient;
  void *exp_avg, *exp_avg_sq;                           // float, bfloat16 or 8-bit codes
  float *largest_avg = nullptr, *largest_sq = nullptr;  // one for each block of codes
};

void adam_on_host(AdamState kept_in, const std::vector<HostTensor>& tensors);

}  // namespace vernier
