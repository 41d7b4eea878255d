// Faster kernels for LibTorch's operators on a CPU. They are below autograd and autocast, so they serve any model,
// forward and backward, without a change.
#pragma once

#include <vernier/abi.h>

namespace vernier {

// Has LibTorch call the kernels of this library, or its own again. For the whole process; call it while no other thread
// computes.
//
// docs/performance.md lists the operators, with dtypes, processors and errors. Activations compute in float32 and round
// once at the end. Products of matrices, softmax, cross entropy and layer norm with little work take one thread: waking
// all threads takes longer than the work. In-place variants, tensors with gaps between their elements and other dtypes
// keep LibTorch's kernels.
//
// The bits of a result do not depend on the number of threads, nor on the place in a tensor.
VERNIER_API void use_fused_kernels(bool on = true);

// Whether the kernels of this library are in use.
VERNIER_API bool fused_kernels();

}  // namespace vernier
