// The choice between Vernier's CUDA kernels (gpu_library.h) and LibTorch's operators, for the whole process.
#pragma once

#include <c10/core/Device.h>
#include <vernier/abi.h>

namespace vernier {

// Has optimizers and norms on NVIDIA GPUs use the library of CUDA kernels, or LibTorch's operators. For optimizers made
// from now on.
VERNIER_API void use_gpu_library(bool on);

// Returns true if updates on a device are the library's. The first call for a GPU opens it, as gpu_library() does.
VERNIER_API bool uses_gpu_library(const c10::Device& device);

}  // namespace vernier
