// What the tasks of language models share of their networks.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace language {

// The function between the two products of an MLP.
using Activation = torch::Tensor (*)(const torch::Tensor&);

// A causal language model.
class Network : public torch::nn::Module {
 public:
  using Part = std::function<torch::Tensor(const torch::Tensor&)>;

  // Logits [batch, time, vocabulary] of tokens int64 [batch, time].
  virtual torch::Tensor forward(const torch::Tensor& tokens) = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t longest() const = 0;  // tokens of a sequence; 0: there is no limit
  virtual bool is_tied() const = 0;          // the head is the token embedding

  // Lets `runner` call each block on its input, to save memory. By default forward() does.
  using Runner = std::function<torch::Tensor(const Part& block, const torch::Tensor& x)>;
  void run_blocks_by(Runner runner) { runner_ = std::move(runner); }

 protected:
  torch::Tensor run(const Part& block, const torch::Tensor& x) const { return runner_ ? runner_(block, x) : block(x); }

 private:
  Runner runner_;
};

// Draws every matrix of a new model from a normal distribution, by the seed alone. Norms and biases stay as they are.
// deviation: of the parameter of this name.
void draw_weights(torch::nn::Module& model, std::uint64_t seed,
                  const std::function<double(const std::string& name)>& deviation);

}  // namespace language
