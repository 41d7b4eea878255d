// The common form of torch::nn::Linear, at::linear and GPT-2's Conv1D.
#pragma once

#include <vernier/layers.h>

#include <optional>

namespace vernier {

// output = input weightᵀ + bias
struct LinearCall {
  torch::Tensor input;   // [..., inputs]
  torch::Tensor weight;  // [outputs, inputs]; a transposed view if the parameter is stored as [inputs, outputs]
  torch::Tensor bias;    // [outputs], or undefined
};

// For an Interceptor. Returns the operands of `linear`, `addmm`, `mm` or `matmul` with a layer's weight. Returns
// nothing for other operations and other forms (addmm with alpha or beta, a matrix as bias).
VERNIER_API std::optional<LinearCall> linear_call(const Operation& operation, const Values& arguments);

}  // namespace vernier
