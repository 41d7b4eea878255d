// The library of CUDA kernels (sdk/cuda). It is opened where an optimizer or a norm first needs it on an NVIDIA GPU.
// Without it, LibTorch's operators do the same work in more passes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <vernier/abi.h>

#include <string>

#include "gpu_choice.h"
#include "library.h"

namespace vernier {

// Returns the kernels for a device; nullptr for a CPU, after use_gpu_library(false), and where the library cannot be
// used. The first call for a GPU opens the library, compares its results with those of the kernels for the CPU, and
// logs one line that says whether it is used, or why not.
VERNIER_API const gpu::Library* gpu_library(const c10::Device& device);

// Opens a file, or returns the library of an earlier call for it. It stays mapped. Throws Error whose text says why the
// library cannot be used.
VERNIER_API const gpu::Library& open_gpu_library(const std::string& file);

// Returns the path of a library that needs CUDA: beside the library of core in a build tree, in vernier/ beside it in
// an installation. The file need not exist.
VERNIER_API std::string gpu_library_file(const std::string& name = "libvernier_cuda.so");

// Returns the kind of float32, bfloat16 or float16.
VERNIER_API gpu::Kind kind_of(c10::ScalarType dtype);

// The current stream of a GPU; nullptr for a CPU.
VERNIER_API gpu::Stream stream_of(const c10::Device& device);

// Throws Error if a kernel of this name could not be launched.
VERNIER_API void require_launched(gpu::Trouble trouble, const char* kernel);

// Compares each kernel with the kernels for the CPU on a few numbers. Returns the name of the first one whose results
// differ by more than roundings, or "". Waits for the device. Defined in
// optim/gpu_optimizers.cpp, which calls most of the kernels.
VERNIER_API std::string wrong_on_device(const gpu::Library& library, const c10::Device& device);

}  // namespace vernier
