// The networks of task/text: they read the tokens of a text, and say its class or a number.
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
#include "../language/network.h"

namespace text {

struct Shape {
  std::int64_t tokens = 0;  // size of the embedding: the vocabulary and what encoder_code adds to it
  std::int64_t length = 0, width = 64, layers = 2, heads = 4;
  double dropout = 0;
  std::int64_t outputs = 1;  // classes, or 1 number
  bool has_units = false;    // the number is in the units of the targets
};

// Calls a part of the network, which backward may compute again (SupervisedTask::recomputed).
using Part = std::function<torch::Tensor(const torch::Tensor&)>;
using CallPart = std::function<torch::Tensor(const Part& part, const torch::Tensor& x)>;

class Network : public torch::nn::Module {
 public:
  // padding: of reading.h's tokens.
  Network(bool has_units, std::int64_t padding);

  // tokens: int64 [samples, up to `length`], as reading.h has them, or [groups, texts, up to `length`]. Returns logits
  // [samples, classes], or numbers [samples] or [groups, texts]: float64 where they have the units of the targets, and
  // 0 where a group has no text.
  torch::Tensor forward(const torch::Tensor& tokens);

  // Mean and deviation of the training targets, float64; undefined where numbers have no units.
  torch::Tensor target_mean, target_deviation;
  void standardise(const torch::Tensor& targets);

 protected:
  virtual torch::Tensor outputs(const torch::Tensor& tokens) = 0;  // [samples, outputs]

 private:
  torch::Tensor scores(const torch::Tensor& groups);
  std::int64_t padding_;
};

// A transformer encoder. The mean of its outputs over the tokens of a text is classified, or becomes a number.
class Encoder final : public Network {
 public:
  Encoder(const Shape& shape, CallPart call);

 private:
  torch::Tensor outputs(const torch::Tensor& tokens) override;

  CallPart call_;
  torch::nn::Embedding embedding_;
  torch::Tensor position_;
  torch::nn::Dropout drop_;
  std::vector<std::shared_ptr<EncoderBlock>> blocks_;
  torch::nn::LayerNorm ln_;
  torch::nn::Linear last_;
};

// A published causal model with a new head on the last token of a text, as transformers' ...ForSequenceClassification
// has it: parameters of the model are "model.…", and the head is "score.weight" [outputs, width].
class PublishedNetwork final : public Network {
 public:
  // Takes the head for tokens away from the model. The new one is drawn by the seed alone.
  PublishedNetwork(std::shared_ptr<language::Network> model, const Shape& shape, std::uint64_t seed);
  language::Network& model() const { return *model_; }
  const torch::Tensor& head() const { return head_; }

 private:
  torch::Tensor outputs(const torch::Tensor& tokens) override;

  std::shared_ptr<language::Network> model_;
  torch::Tensor head_;
};

// Python source of a torch.nn.Module with the encoder's names and outputs, and of a model that takes texts. facts:
// JSON. tokenizer: the text of tokenizer.json, or "" where the folder of the tokenizer has none.
std::string python_source(const Shape& shape, const std::string& facts, const std::string& tokenizer);

}  // namespace text
