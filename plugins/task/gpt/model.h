// GPT-2's network over bytes (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): pre-norm
// blocks, tanh gelu, learned positions, head tied to the token embedding. Parameters have the names and shapes of
// GPT-2's published safetensors: "h.0.attn.c_attn.weight" is [inputs, outputs].
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/recompute_budget.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpt {

inline constexpr std::int64_t vocabulary = 256;

struct Shape {
  std::int64_t layers = 4, heads = 4, width = 256, context = 256;
  double dropout = 0.0;
  std::int64_t recompute_every = 0;            // every so many-th block is computed again in backward; 0: none
  vernier::Keep keep = vernier::Keep::inputs;  // what such a block keeps for it
};

class Block;
class LayerNorm;

class Network final : public torch::nn::Module {
 public:
  // Builds the network on the CPU in float32, with GPT-2's initialisation drawn from the seed alone.
  Network(const Shape& shape, std::uint64_t seed);

  // Logits [batch, time, vocabulary] of tokens [batch, time], time <= context.
  torch::Tensor forward(const torch::Tensor& tokens);
  // Logits [batch, vocabulary] of the token that follows the last one.
  torch::Tensor next_token(const torch::Tensor& tokens);
  // Lets `blocks` choose which blocks are computed again, instead of recompute_every. It must live as long as forward()
  // is called.
  void set_budget(vernier::BudgetedBlocks& blocks) { budgeted_ = &blocks; }

 private:
  torch::Tensor features(const torch::Tensor& tokens);
  torch::Tensor block(std::size_t index, const torch::Tensor& x);
  void initialise(std::int64_t layers, std::uint64_t seed);

  double dropout_;
  std::size_t recompute_every_;
  vernier::Keep keep_;
  vernier::BudgetedBlocks* budgeted_ = nullptr;
  torch::Tensor token_embedding_, position_embedding_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<LayerNorm> last_norm_;
};

}  // namespace gpt
