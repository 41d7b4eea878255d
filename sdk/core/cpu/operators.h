// Operators on a CPU in the place of LibTorch's. They call LibTorch's where fused_kernels() is false.
#pragma once

#include <torch/library.h>

namespace vernier {

// bernoulli_ with one probability, as dropout draws. It draws the same numbers from the same generator and leaves it in
// the same state, so the results are those of LibTorch.
void register_bernoulli(torch::Library& library);

// max_pool2d_with_indices of contiguous images, with LibTorch's results, and its backward of 2x2
// windows. LibTorch's kernels look at one number after another.
void register_max_pool(torch::Library& library);

// Operators that take one thread where the work is small. MKL and some of LibTorch's kernels wake all threads however
// little there is to do, which takes longer than the work. The number of threads depends on shapes alone, so runs stay
// reproducible.
void register_small_operators(torch::Library& library);

}  // namespace vernier
