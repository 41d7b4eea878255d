// What torch::nn::Linear, at::linear and GPT-2's Conv1D all come to.
#pragma once

#include <vernier/layers.h>

#include <optional>

namespace vernier {

// output = input x weight^T + bias
struct LinearCall {
  torch::Tensor input;   // [..., inputs]
  torch::Tensor weight;  // [outputs, inputs]; where the parameter is stored the other way round, its transposed view
  torch::Tensor bias;    // [outputs], or undefined
};

// For an Interceptor: `linear`, `addmm`, `mm` or `matmul` with the weight of a layer. Nothing where the operation is none
// of these, or one of another form (addmm with alpha or beta, a bias that is a matrix).
VERNIER_API std::optional<LinearCall> linear_call(const Operation& operation, const Values& arguments);

}  // namespace vernier
