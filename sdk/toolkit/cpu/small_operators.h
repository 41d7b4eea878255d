// Operators of few elements on one thread.
#pragma once

#include <torch/library.h>

#include <atomic>

namespace vernier {

// Registers, in the place of LibTorch's CPU kernels, such that call them on one thread where `in_use` is true and the
// work is small. MKL and some of LibTorch's kernels wake all threads however little there is to do, which takes longer
// than the work. The number of threads depends on shapes alone, so runs stay reproducible.
void register_small_operators(torch::Library& library, const std::atomic<bool>& in_use);

}  // namespace vernier
