// The network of task/text: an encoder of tokens, whose mean is classified or becomes a number.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../encoder_block.h"

namespace text {

struct Shape {
  std::int64_t tokens = 0;  // of the embedding: the vocabulary and what reading.h adds to it
  std::int64_t length = 0, width = 64, layers = 2, heads = 4;
  double dropout = 0;
  std::int64_t outputs = 1;  // classes, or 1 number
};

// Calls a part of the network, which backward may compute again (SupervisedTask::recomputed).
using Part = std::function<torch::Tensor(const torch::Tensor&)>;
using CallPart = std::function<torch::Tensor(const Part& part, const torch::Tensor& x)>;

class Network final : public torch::nn::Module {
 public:
  Network(const Shape& shape, CallPart call);

  // tokens: int64 [samples, up to `length`], as reading.h has them. Returns logits [samples, classes], or numbers
  // [samples] in the units of the targets, float64.
  torch::Tensor forward(const torch::Tensor& tokens);

  // Mean and deviation of the training targets, float64; undefined in a classification.
  torch::Tensor target_mean, target_deviation;
  void standardise(const torch::Tensor& targets);

 private:
  Shape shape_;
  CallPart call_;
  torch::nn::Embedding embedding_;
  torch::Tensor position_;
  torch::nn::Dropout drop_;
  std::vector<std::shared_ptr<EncoderBlock>> blocks_;
  torch::nn::LayerNorm ln_;
  torch::nn::Linear last_;
};

// Python source of a torch.nn.Module with the same names and outputs, and of a model that takes texts. facts: JSON.
// tokenizer: the text of tokenizer.json, or "" where the folder of the tokenizer has none.
std::string python_source(const Shape& shape, const std::string& facts, const std::string& tokenizer);

}  // namespace text
