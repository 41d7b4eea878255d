// The network of Llama (Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288) and of the families that differ
// from it in parts: norms around the halves of a block, rotary positions, a gated MLP, grouped queries. Parameters have
// the names and shapes of the published safetensors: "model.layers.0.self_attn.q_proj.weight" is [outputs, inputs].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../language/network.h"
#include "rope.h"

namespace llama {

// The norms of a block: of the input of each half, of its output, or of both; parallel: both halves have the block's
// input, by one norm.
enum class Norms : std::uint8_t { before, after, around, parallel };
// The norms of queries and keys: none, one of each head's width, or one of all heads together.
enum class HeadNorms : std::uint8_t { none, each, all };

struct LayerKind {
  std::int64_t window = 0;          // tokens that a token sees, with itself; 0: all before it
  std::optional<std::size_t> rope;  // index of the network's rope; nothing: the layer knows no positions
};

struct Shape {
  std::int64_t vocabulary = 0, width = 0, inner = 0, layers = 0;
  std::int64_t heads = 0, key_heads = 0, head_width = 0;  // key_heads divides heads
  std::vector<LayerKind> kinds;                           // one for each layer
  double epsilon = 1e-6;                                  // epsilon of the norms
  bool adds_one = false;                                  // norms multiply by 1 + weight
  bool has_means = false, norm_bias = false;              // norms are LayerNorm, and may have a bias
  Norms norms = Norms::before;
  HeadNorms head_norms = HeadNorms::none;
  language::Activation activation = nullptr;  // activation of the gate
  bool query_bias = false, output_bias = false, mlp_bias = false;
  bool is_fused = false, is_mlp_fused = false;  // q, k and v are one matrix; gate and up are
  bool is_paired = false;                       // see turned()
  bool is_tied = false;                         // the head is the token embedding
  std::optional<double> attention_scale;        // nothing: the inverse root of head_width
  double score_cap = 0, logit_cap = 0;          // limits for language::capped(); 0: none
  double embedding_scale = 1, half_scale = 1;   // factors of embeddings, and of each half's output
  double logit_divisor = 1;
  double dropout = 0.0, half_dropout = 0.0;  // dropout of the attention, and of each half's output
  double deviation = 0.02;                   // standard deviation of the initial weights
  std::int64_t padding = -1;  // the token whose embedding learns nothing as an input, as in transformers; -1: none
};

class Layer;
class Norm;

class Network final : public language::Network {
 public:
  // Builds the network on the CPU in float32, with initial weights drawn from the seed alone.
  Network(const Shape& shape, std::vector<Rope> ropes, std::uint64_t seed);

  std::int64_t vocabulary() const override { return embedding_.size(0); }
  std::int64_t longest() const override { return 0; }
  std::int64_t context() const override { return ropes_.front().context(); }
  std::int64_t cacheable() const override;
  bool is_tied() const override { return !head_.defined(); }
  torch::Tensor features(const language::Texts& texts) override;

 private:
  const torch::Tensor& head() const override;
  void release_head() override { head_.reset(); }
  torch::Tensor logits(const torch::Tensor& features) const override;
  bool has_linear_logits() const override { return logit_divisor_ == 1 && logit_cap_ == 0; }

  std::vector<Rope> ropes_;
  std::vector<LayerKind> kinds_;
  std::int64_t padding_;
  double embedding_scale_, logit_divisor_, logit_cap_;
  torch::Tensor embedding_, head_;  // head_: undefined if tied
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<Norm> norm_;
};

}  // namespace llama
