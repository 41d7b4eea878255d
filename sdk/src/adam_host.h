// Adam and AdamW over many tensors on the host, in one pass on as many threads as pay: chunk by chunk, so that averages
// that are kept in fewer bits are in float32 for a chunk at a time. The bits do not depend on the number of threads.
#pragma once

#include <vernier/optim.h>

#include <cstdint>
#include <vector>

#include "adam_kernel.h"

namespace vernier {

// A parameter and what belongs to it: dense, in one layout.
struct HostTensor {
  AdamNumbers numbers;
  CountedNoise noise;  // bfloat16 alone
  std::int64_t count;
  float* parameter;
  const float* gradient;
  void *exp_avg, *exp_avg_sq;  // float, bfloat16 or codes
  float *largest_avg = nullptr, *largest_sq = nullptr;  // of each block of codes
};

void adam_on_host(AdamState kept_in, const std::vector<HostTensor>& tensors);

// As LibTorch's kernels round here: its processor capability decides.
Rounding rounding_here();

}  // namespace vernier
