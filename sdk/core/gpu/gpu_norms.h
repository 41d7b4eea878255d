// LayerNorm and RMSNorm by the library of CUDA kernels. With a library that was compiled for the host, they work on CPU
// tensors.
#pragma once

#include <vernier/tensor.h>

#include "gpu_library.h"

namespace vernier {

// Rows of a contiguous tensor, in float32, bfloat16 or float16. weight, bias: float32, contiguous, or undefined.
struct NormInput {
  torch::Tensor x, weight, bias;
  std::int64_t columns = 0;
  double eps = 0;
  bool is_rms = false;
};
struct Normed {
  torch::Tensor y, mean, inverse;  // mean: undefined for RMSNorm
};
VERNIER_API Normed norm_on_gpu(const gpu::Library& library, const NormInput& input);

struct NormGradients {
  torch::Tensor x, weight, bias;  // gradients of weight and bias in float32
};
// slopes: of y, contiguous, in the dtype of x.
VERNIER_API NormGradients norm_backward_on_gpu(const gpu::Library& library, const NormInput& input,
                                               const Normed& normed, const torch::Tensor& slopes);

// Compares them with LibTorch's on the CPU. Waits for the device.
bool norms_of_rows_are_right(const gpu::Library& library, const c10::Device& device);

// Has layer_norm and rms_norm with gradients use these kernels on GPUs, where they take the tensors.
void register_norms_on_gpu();

}  // namespace vernier
