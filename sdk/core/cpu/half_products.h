// Products of float16 and bfloat16 matrices on processors whose instructions for them are missing, so that LibTorch's
// are loops over single numbers, or slower than float32's. Blocks of the operands are converted and multiplied in
// float32, and a result is rounded once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace vernier {

// True after use_matmul("plain"), which keeps LibTorch's products in 16 bits, too.
bool keeps_plain_products();

// True for a dtype of 16 bits that LibTorch multiplies slowly on this processor, unless its kernels are to be kept.
bool lacks_fast_products(at::ScalarType dtype);

// LibTorch's operators of these names, called themselves if multiplies_in_float32() is false. Tasks are cut by the
// shapes alone, and each is one thread's, so the bits do not depend on the number of threads.
at::Tensor mm(const at::Tensor& left, const at::Tensor& right);
at::Tensor bmm(const at::Tensor& left, const at::Tensor& right);
at::Tensor addmm(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                 const at::Scalar& alpha);
at::Tensor baddbmm(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                   const at::Scalar& alpha);
at::Tensor mv(const at::Tensor& left, const at::Tensor& right);
at::Tensor addmv(const at::Tensor& added, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                 const at::Scalar& alpha);

// Convolutions and LSTM layers: converted as a whole, and computed by LibTorch's operators for float32.
void register_half_layers(torch::Library& library);

}  // namespace vernier
