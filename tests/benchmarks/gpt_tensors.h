// Parameters for benchmarks of optimizers.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

// The parameters of a 4-layer GPT (53 tensors, 3.4 million elements) with normal gradients times `gradient`: width 256,
// vocabulary 256, context 128; GPT-2's tensors, the output layer's weight its own.
inline std::vector<torch::Tensor> gpt_parameters(double gradient) {
  constexpr std::int64_t width = 256, layers = 4;
  std::vector<std::vector<std::int64_t>> shapes = {{256, width}, {128, width}};
  for (std::int64_t i = 0; i < layers; ++i) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{width},
                                                                    {width},
                                                                    {width, 3 * width},
                                                                    {3 * width},
                                                                    {width, width},
                                                                    {width},
                                                                    {width},
                                                                    {width},
                                                                    {width, 4 * width},
                                                                    {4 * width},
                                                                    {4 * width, width},
                                                                    {width}}) {
      shapes.push_back(shape);
    }
  }
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{width}, {width}, {256, width}}) {
    shapes.push_back(shape);
  }
  torch::manual_seed(1);
  std::vector<torch::Tensor> all;
  for (const auto& shape : shapes) {
    all.push_back(torch::randn(shape).requires_grad_());
    all.back().mutable_grad() = torch::randn(shape) * gradient;
  }
  return all;
}
