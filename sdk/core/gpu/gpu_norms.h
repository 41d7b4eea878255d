// LayerNorm and RMSNorm by the library of CUDA kernels. With a library that was compiled for the host, they work on CPU
// tensors.
#pragma once

#include <vernier/tensor.h>

#include "gpu_library.h"

namespace vernier {

// Rows of a contiguous tensor, in float32, bfloat16 or float16. weight, bias: float32, contiguous, or undefined. dtype:
// that of y and the branch; it is that of x, or any of the three if that is float32. branch: contiguous, is added to x
// first; undefined: there is none.
struct NormInput {
  torch::Tensor x, weight, bias;
  std::int64_t columns = 0;
  double eps = 0;
  bool is_rms = false;
  c10::ScalarType dtype = x.scalar_type();
  torch::Tensor branch = {};
};
struct Normed {
  torch::Tensor y, mean, inverse;  // mean: undefined for RMSNorm
  torch::Tensor sum = {};          // x + branch in the dtype of x; undefined without a branch
};
VERNIER_API Normed norm_on_gpu(const gpu::Library& library, const NormInput& input);

struct NormGradients {
  torch::Tensor x, weight, bias;  // gradients of weight and bias in float32
  torch::Tensor branch = {};      // defined if slopes of the sum are given
};
// input.x: what was normed, which is the sum if there was a branch. slopes: of y, contiguous, in the dtype of y.
// sum_slopes: of the sum, contiguous, in the dtype of x; undefined: there was no branch.
VERNIER_API NormGradients norm_backward_on_gpu(const gpu::Library& library, const NormInput& input,
                                               const Normed& normed, const torch::Tensor& slopes,
                                               const torch::Tensor& sum_slopes = {});

// Norms with derivatives of any order, for tensors of any layout, weight and bias in any dtype. Returns y, and the sum
// if there is a branch.
VERNIER_API Normed norm_with_gradients(const gpu::Library& library, const NormInput& input);
// Returns the library if it takes these; nullptr: it does not, or there is none.
const gpu::Library* library_for(const NormInput& input);

// Compares them with LibTorch's on the CPU. Waits for the device.
bool norms_of_rows_are_right(const gpu::Library& library, const c10::Device& device);

// Has layer_norm and rms_norm with gradients use these kernels on GPUs, where they take the tensors.
void register_norms_on_gpu();

}  // namespace vernier
