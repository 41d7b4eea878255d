// Faster kernels for LibTorch's operators on a CPU. They are below autograd and autocast, so they serve any model,
// forward and backward, without a change.
#pragma once

#include <vernier/abi.h>

namespace vernier {

// Has LibTorch call the kernels of this library, or its own again. For the whole process; call it while no other thread
// computes.
//
// - at::gelu (tanh) and at::silu, forward and backward, in float32 and bfloat16, on processors with AVX2 and FMA. They
//   compute in float32 and round once at the end. Results of forward are within 3 ulp of the exact ones, where
//   LibTorch's gelu has no correct digit for inputs below -6. In-place variants, tensors with gaps between their
//   elements and other dtypes keep LibTorch's kernels.
// - Products of matrices, softmax, cross entropy and layer norm with little work take one thread. LibTorch wakes all
//   threads for them, which takes longer than the work.
//
// The bits of an element-wise result do not depend on the number of threads, nor on the place in a tensor.
VERNIER_API void use_fused_kernels(bool on = true);

// Whether the kernels of this library are in use.
VERNIER_API bool fused_kernels();

}  // namespace vernier
