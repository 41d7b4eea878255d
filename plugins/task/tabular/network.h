// The network of task/tabular: standardised numbers and embedded categories, then layers.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tabular {

struct Shape {
  std::int64_t numbers = 0;              // columns of numbers
  std::vector<std::int64_t> categories;  // for each column of categories: its codes, that of unknown ones included
  std::vector<std::int64_t> hidden;      // widths of the layers
  bool residual = false;                 // blocks that add to their input, all of the first width
  double dropout = 0;
  std::int64_t outputs = 1;  // classes, or 1 number
};

// Calls a part of the network, which backward may compute again (SupervisedTask::recomputed).
using CallPart = std::function<torch::Tensor(const std::function<torch::Tensor(const torch::Tensor&)>& part,
                                             const torch::Tensor& x)>;

class Network final : public torch::nn::Module {
 public:
  Network(const Shape& shape, CallPart call);

  // numbers: [samples, columns]; categories: int64 [samples, columns]. Logits [samples, classes], or numbers [samples]
  // in the units of the targets, float64.
  torch::Tensor forward(const torch::Tensor& numbers, const torch::Tensor& categories);

  // Sets the buffers from the training rows; targets: of a regression.
  void standardise(const torch::Tensor& numbers, const torch::Tensor& targets);

  // Buffers in float64: mean and deviation of each column of numbers, and of the targets.
  torch::Tensor mean, deviation, target_mean, target_deviation;

 private:
  Shape shape_;
  CallPart call_;
  torch::nn::ModuleList embeddings_, layers_;
  torch::nn::Linear last_ = nullptr;
};

// Python source of a torch.nn.Module with the same names and outputs, and of a model that takes rows by name. facts:
// JSON.
std::string python_source(const Shape& shape, const std::string& facts);

}  // namespace tabular
