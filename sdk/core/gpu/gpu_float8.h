// Casts to fp8 by the library of CUDA kernels. With a library that was compiled for the host, they work on CPU tensors.
#pragma once

#include <vernier/tensor.h>

#include "gpu_library.h"

namespace vernier {

// Returns true if cast_on_gpu() takes the tensor: float32, bfloat16 or float16, contiguous, not empty.
VERNIER_API bool can_cast_on_gpu(const torch::Tensor& x);

// The values of float8_quantize(x, scale, format) with one scale, and with the same bits. scale: float32 0-dim.
// largest, if defined: float32 0-dim, a 0 that becomes float8_amax(x) in the same pass.
VERNIER_API torch::Tensor cast_on_gpu(const gpu::Library& library, const torch::Tensor& x, const torch::Tensor& scale,
                                      torch::ScalarType format, const torch::Tensor& largest = {});

// float8_amax(x), with the same bits.
VERNIER_API torch::Tensor amax_on_gpu(const gpu::Library& library, const torch::Tensor& x);

// The same cast of a matrix, and the contiguous transposed values, all in one pass.
struct CastTwice {
  torch::Tensor values, transposed = {};
  torch::Tensor scale = {}, inverse = {};  // results of cast_by_amax_on_gpu()
};
VERNIER_API CastTwice cast_twice_on_gpu(const gpu::Library& library, const torch::Tensor& x, const torch::Tensor& scale,
                                        torch::ScalarType format, const torch::Tensor& largest = {});

// The same with the scale that brings float8_amax(x) to `highest`, as float8_scale() has it, in two passes. twice: with
// the transposed values.
VERNIER_API CastTwice cast_by_amax_on_gpu(const gpu::Library& library, const torch::Tensor& x, torch::ScalarType format,
                                          double highest, bool power_of_two, bool twice);

// values.contiguous() of a matrix whose transpose is contiguous. values: of an fp8 format.
VERNIER_API torch::Tensor contiguous_on_gpu(const gpu::Library& library, const torch::Tensor& values);

// Compares casts with LibTorch's. Waits for the device.
bool casts_are_right(const gpu::Library& library, const c10::Device& device);

}  // namespace vernier
