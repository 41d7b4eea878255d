// Random zeros and ones on a CPU, as dropout draws them.
#pragma once

#include <torch/library.h>

namespace vernier {

// Registers bernoulli_ with one probability, in the place of LibTorch's CPU kernel. It draws the same numbers from the
// same generator and leaves it in the same state, so the results are those of LibTorch. It calls LibTorch's
// where fused_kernels() is false.
void register_bernoulli(torch::Library& library);

}  // namespace vernier
