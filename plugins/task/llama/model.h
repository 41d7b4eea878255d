// The network of Llama (Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288): RMSNorm before each half of a
// block, rotary positions, SwiGLU, grouped queries. Parameters have the names and shapes of the published safetensors:
// "model.layers.0.self_attn.q_proj.weight" is [outputs, inputs].
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../language/network.h"
#include "rope.h"

namespace llama {

struct Shape {
  std::int64_t vocabulary = 0, width = 0, inner = 0, layers = 0;
  std::int64_t heads = 0, key_heads = 0, head_width = 0;  // key_heads divides heads
  double epsilon = 1e-6;                                  // of the norms
  language::Activation activation = nullptr;              // of the gate
  bool attention_bias = false, mlp_bias = false;
  bool is_tied = false;     // the head is the token embedding
  double dropout = 0.0;     // of the attention
  double deviation = 0.02;  // of the initial weights
};

class Layer;
class RmsNorm;

class Network final : public language::Network {
 public:
  // Builds the network on the CPU in float32, with initial weights drawn from the seed alone.
  Network(const Shape& shape, Rope rope, std::uint64_t seed);

  std::int64_t vocabulary() const override { return embedding_.size(0); }
  std::int64_t longest() const override { return 0; }
  std::int64_t cacheable() const override { return rope_.cacheable(); }
  bool is_tied() const override { return !head_.defined(); }

 private:
  torch::Tensor features(const language::Texts& texts) override;
  torch::Tensor logits(const torch::Tensor& features) const override;

  Rope rope_;
  torch::Tensor embedding_, head_;  // head_: undefined if tied
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace llama
