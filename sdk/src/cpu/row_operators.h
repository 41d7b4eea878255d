// LayerNorm and softmax on a CPU: by the kernels of this library where they can, otherwise by LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <tuple>

namespace vernier {

// Where `in_use` is false, those below call LibTorch's.
void use_row_operators(const std::atomic<bool>& in_use);

// As LibTorch's operators of these names. There is no backward of LayerNorm and of softmax: LibTorch's are as fast.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& x, at::IntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double eps);
at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float);
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float);
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype);

}  // namespace vernier
