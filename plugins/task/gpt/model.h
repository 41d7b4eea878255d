// GPT-2's network (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): pre-norm blocks,
// learned positions, and by default tanh gelu and a head tied to the token embedding. Parameters have the names and
// shapes of GPT-2's published safetensors: "h.0.attn.c_attn.weight" is [inputs, outputs].
#pragma once

#include <vernier/recompute_budget.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "../language/network.h"

namespace gpt {

inline constexpr std::int64_t vocabulary = 256;  // size for a model over bytes

struct Shape {
  std::int64_t layers = 4, heads = 4, width = 256, context = 256;
  std::int64_t vocabulary = gpt::vocabulary;
  std::int64_t inner = 0;  // width of the MLP; 0: four times the width
  double embedding_dropout = 0.0, attention_dropout = 0.0;
  double dropout = 0.0;  // after both halves of a block
  language::Activation activation = language::gelu_by_tanh;
  double epsilon = 1e-5;                       // epsilon of the norms
  bool scales_attention = true;                // scores are divided by the root of a head's width
  bool scales_by_layer = false;                // and by the number of the layer, from 1
  bool is_tied = true;                         // the head is the token embedding
  double deviation = 0.02;                     // standard deviation of the initial weights
  std::int64_t recompute_every = 0;            // every so many-th block is computed again in backward; 0: none
  vernier::Keep keep = vernier::Keep::inputs;  // tensors that such a block keeps
};

class Block;
class LayerNorm;

class Network final : public language::Network {
 public:
  // Builds the network on the CPU in float32, with GPT-2's initialisation drawn from the seed alone.
  Network(const Shape& shape, std::uint64_t seed);

  std::int64_t vocabulary() const override { return token_embedding_.size(0); }
  std::int64_t longest() const override { return position_embedding_.size(0); }
  bool is_tied() const override { return !head_.defined(); }
  // Lets `blocks` choose which blocks are computed again, instead of recompute_every. It must live as long as forward()
  // is called.
  void set_budget(vernier::BudgetedBlocks& blocks) { budgeted_ = &blocks; }
  torch::Tensor features(const language::Texts& texts) override;

 private:
  torch::Tensor positions_of(const language::Texts& texts) const;
  torch::Tensor block(std::size_t index, const torch::Tensor& x, const language::AttentionMask& mask);
  const torch::Tensor& head() const override;
  void release_head() override { head_.reset(); }

  double embedding_dropout_;
  std::size_t recompute_every_;
  vernier::Keep keep_;
  vernier::BudgetedBlocks* budgeted_ = nullptr;
  torch::Tensor token_embedding_, position_embedding_, head_;  // head_: undefined if tied
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<LayerNorm> last_norm_;
};

}  // namespace gpt
