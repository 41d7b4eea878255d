// Faster kernels for LibTorch's operators on a CPU. They are below autograd and autocast, so they serve any model,
// forward and backward, without a change.
#pragma once

#include <vernier/abi.h>

namespace vernier {

// Has LibTorch call the kernels of this library, or its own again. For the whole process; call it while no other thread
// computes.
//
// - at::gelu (tanh) and at::silu, forward and backward, in float32 and bfloat16, on processors with AVX2 and FMA; in
//   float16 too with AVX-512. They compute in float32 and round once at the end. Results of forward are within 3 ulp of
//   the exact ones, or 0 where these are below 6e-38; LibTorch's gelu has no correct digit for inputs below -6.
//   In-place variants, tensors with gaps between their elements and other dtypes keep LibTorch's kernels.
// - at::scaled_dot_product_attention without dropout, causal, with a mask or without, forward and backward, in float32,
//   bfloat16 and float16, with AVX-512. It works in blocks and keeps no weights of attention. bfloat16 is multiplied by
//   AMX or AVX512-BF16 where they are, everything else in float32. Heads wider than 256 keep LibTorch's kernels, and so
//   do fewer than 48 queries or keys, but for the backward in 16 bits. Queries whose keys are all masked by a finite
//   number such as -1e9 have right gradients, where LibTorch's kernels, for which such a sum of weights is lost, have
//   not.
// - at::layer_norm, at::rms_norm and at::log_softmax, forward and backward, and at::softmax forward, of contiguous
//   tensors over the last dimensions; at::cross_entropy_loss, mean or sum, of logits [rows, classes] and numbers of
//   classes. All of them in float32, bfloat16 and float16, with AVX2, computed in float32. Rows of any length have the
//   digits of LibTorch's, and those whose squares float32 cannot hold are computed in float64, where LibTorch gives the
//   bias or 0. at::native_layer_norm gives mean and inverse deviation in float32, also of 16 bits.
// - The random numbers of dropout, and at::max_pool2d of contiguous images, with AVX2. Both are those of LibTorch.
// - at::mm, addmm, bmm, baddbmm, mv and addmv, and so at::linear and at::matmul, in float16 and bfloat16 where LibTorch
//   has no fast ones on this processor (vernier/matmul.h): blocks are converted, multiplied in float32, and rounded
//   once. Convolutions that LibTorch would compute by such products, and LSTM layers that it has no kernel for, are
//   converted as a whole. Their bits do not depend on the number of threads.
// - Autocast casts the convolutions of traced models (at::_convolution), which LibTorch's list for a CPU lacks.
// - Products of matrices, softmax, cross entropy and layer norm with little work take one thread. LibTorch wakes all
//   threads for them, which takes longer than the work.
//
// The bits of a result do not depend on the number of threads, and those of an element-wise one not on the place in a
// tensor. Other products of matrices are LibTorch's, and promise neither.
VERNIER_API void use_fused_kernels(bool on = true);

// Returns true if the kernels of this library are in use.
VERNIER_API bool fused_kernels();

}  // namespace vernier
