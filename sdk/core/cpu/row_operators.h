// LayerNorm, RMSNorm and softmax on a CPU: by the kernels of this library where they can, otherwise by LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace vernier {

// True if fused_kernels() is true, and this processor has the instructions that the kernels need. If not, those below
// call LibTorch's.
bool may_compute_rows();

using Parameter = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Replacements of LibTorch's operators of these names.
at::Tensor log_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float);
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim, at::ScalarType dtype);
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float);
// Mean and inverse deviation are in float32, also of 16 bits, where LibTorch's are rounded to 16.
Three layer_norm(const at::Tensor& x, at::IntArrayRef shape, const Parameter& weight, const Parameter& bias,
                 double eps);
Three layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& mean,
                          const at::Tensor& inverse, const Parameter& weight, const Parameter& bias,
                          std::array<bool, 3> wanted);

// Registers a kernel of at::rms_norm. LibTorch's own on a CPU is ten operators, each with a backward of its own.
void register_rms_norm(torch::Library& library);
// at::cross_entropy_loss, mean or sum over classes that are given by their numbers. LibTorch's is a log softmax and a
// choice, each with a backward of its own.
void register_cross_entropy(torch::Library& library);

}  // namespace vernier
