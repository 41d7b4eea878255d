// GPT-2's MLP by products that include its biases, its GELU, and their gradients.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

namespace vernier {

// Weights are stored [inputs, outputs], as GPT-2's are.
struct GeluMlp {
  torch::Tensor weight_in, bias_in;    // [width, hidden], [hidden]
  torch::Tensor weight_out, bias_out;  // [hidden, width], [width]
};

// Computes linear(gelu(linear(x, weight_in.t(), bias_in), "tanh"), weight_out.t(), bias_out) for x [..., width], in
// autocast's dtype. Returns an undefined tensor where it does not: then call these operators.
//
// It needs a forward pass for training on an NVIDIA GPU, autocast to 16 bits, and widths that are multiples of 8. It
// leaves the work to the operators while there is an interceptor (vernier/layers.h). cuBLASLt multiplies, and in the
// same launches adds biases, applies GELU, and sums up the gradients of biases. GELU takes a number before it is
// rounded, so results differ from the operators' by roundings. The first call for a shape waits for the device: it
// compares results and gradients with the operators', and two calls with each other. If they differ, or cuBLASLt
// refuses the shape, the operators compute it, and the log says so once in a process. They also compute every shape
// after the eighth.
VERNIER_API torch::Tensor gelu_mlp(const torch::Tensor& x, const GeluMlp& layers);

}  // namespace vernier
