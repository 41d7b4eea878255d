// torch::Tensor with its methods and operators, devices, dtypes and torch::NoGradGuard: the part of LibTorch that
// Vernier's headers need. A file that calls functions (torch::zeros) or has layers (torch::nn) includes <torch/torch.h>
// too, or what it needs of it: <ATen/ops/zeros.h>, <torch/nn/module.h>. That is less to compile.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#ifdef AT_PER_OPERATOR_HEADERS
#include <ATen/TensorOperators.h>
#else
#define AT_PER_OPERATOR_HEADERS  // else this header would include those of all functions
#include <ATen/TensorOperators.h>
#undef AT_PER_OPERATOR_HEADERS
#endif

namespace torch {

using namespace at;  // the same line as in torch/types.h

namespace nn {
class Module;
}  // namespace nn

}  // namespace torch
