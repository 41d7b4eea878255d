// The network of task/llama; see model.h.
#include "model.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <vernier/add_norm.h>

#include <algorithm>
#include <map>

namespace llama {

namespace {

class Linear final : public torch::nn::Module {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, bool has_bias)
      : weight_(register_parameter("weight", torch::empty({outputs, inputs}))) {
    if (has_bias) bias_ = register_parameter("bias", torch::zeros({outputs}));
  }
  torch::Tensor forward(const torch::Tensor& x) const {
    return at::linear(x, weight_, bias_.defined() ? std::optional(bias_) : std::nullopt);
  }

 private:
  torch::Tensor weight_, bias_;
};

// The cosines and sines of a layer: [time, turned width / 2], or [batch, 1, time, turned width / 2]. Undefined in a
// layer without positions.
struct RotaryAngles {
  torch::Tensor cosines, sines;
};

}  // namespace

// RMSNorm, or LayerNorm with or without a bias.
class Norm final : public torch::nn::Module {
 public:
  Norm(const Shape& shape, std::int64_t width)
      : epsilon_(shape.epsilon),
        adds_one_(shape.adds_one),
        has_means_(shape.has_means),
        weight_(register_parameter("weight", torch::full({width}, adds_one_ ? 0.0 : 1.0))) {
    if (shape.norm_bias) bias_ = register_parameter("bias", torch::zeros({width}));
  }
  torch::Tensor forward(const torch::Tensor& x) const {
    if (!has_means_) return at::rms_norm(x, weight_.sizes(), weight(), epsilon_);
    return at::layer_norm(x, weight_.sizes(), weight_, bias_.defined() ? std::optional(bias_) : std::nullopt, epsilon_);
  }
  // Returns the sum, and its norm for linear layers. branch: undefined: x alone.
  vernier::AddedNorm add(const torch::Tensor& x, const torch::Tensor& branch) const {
    return vernier::add_norm(x, branch, {weight(), bias_, epsilon_, !has_means_});
  }

 private:
  torch::Tensor weight() const { return adds_one_ ? weight_ + 1 : weight_; }

  double epsilon_;
  bool adds_one_, has_means_;
  torch::Tensor weight_, bias_;
};

namespace {

class Attention final : public torch::nn::Module {
 public:
  Attention(const Shape& shape, std::int64_t layer)
      : layer_(layer),
        heads_(shape.heads),
        key_heads_(shape.key_heads),
        head_width_(shape.head_width),
        dropout_(shape.dropout),
        cap_(shape.score_cap),
        scale_(shape.attention_scale),
        head_norms_(shape.head_norms),
        is_paired_(shape.is_paired) {
    const auto of_queries = heads_ * head_width_, of_keys = key_heads_ * head_width_;
    const auto linear = [&](const char* name, std::int64_t inputs, std::int64_t outputs, bool has_bias) {
      return register_module(name, std::make_shared<Linear>(inputs, outputs, has_bias));
    };
    if (shape.is_fused) {
      qkv_ = linear("qkv_proj", shape.width, of_queries + 2 * of_keys, shape.query_bias);
    } else {
      q_ = linear("q_proj", shape.width, of_queries, shape.query_bias);
      k_ = linear("k_proj", shape.width, of_keys, shape.query_bias);
      v_ = linear("v_proj", shape.width, of_keys, shape.query_bias);
    }
    o_ = linear("o_proj", of_queries, shape.width, shape.output_bias);
    if (head_norms_ == HeadNorms::none) return;
    const bool is_each = head_norms_ == HeadNorms::each;
    q_norm_ = register_module("q_norm", std::make_shared<Norm>(shape, is_each ? head_width_ : of_queries));
    k_norm_ = register_module("k_norm", std::make_shared<Norm>(shape, is_each ? head_width_ : of_keys));
  }

  torch::Tensor forward(const torch::Tensor& x, const RotaryAngles& turn, const language::AttentionMask& mask) const {
    auto [q, k, v] = projected(x);
    q = in_heads(q, heads_, q_norm_.get());
    k = in_heads(k, key_heads_, k_norm_.get());
    v = in_heads(v, key_heads_, nullptr);
    if (turn.cosines.defined()) {
      const auto cosines = turn.cosines.to(q.scalar_type()), sines = turn.sines.to(q.scalar_type());
      q = turned(q, cosines, sines, is_paired_);
      k = turned(k, cosines, sines, is_paired_);
    }
    const auto y = language::attend(q, k, v, mask, layer_, is_training() ? dropout_ : 0.0, scale_, cap_);
    return o_->forward(y.transpose(1, 2).flatten(2));
  }

 private:
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> projected(const torch::Tensor& x) const {
    if (!qkv_) return {q_->forward(x), k_->forward(x), v_->forward(x)};
    const auto of_keys = key_heads_ * head_width_;
    const auto parts = qkv_->forward(x).split_with_sizes({heads_ * head_width_, of_keys, of_keys}, -1);
    return {parts[0], parts[1], parts[2]};
  }

  // Turns [batch, time, heads * width] into [batch, heads, time, width].
  torch::Tensor in_heads(const torch::Tensor& x, std::int64_t heads, const Norm* norm) const {
    auto y = norm != nullptr && head_norms_ == HeadNorms::all ? norm->forward(x) : x;
    y = y.unflatten(2, {heads, head_width_});
    if (norm != nullptr && head_norms_ == HeadNorms::each) y = norm->forward(y);
    return y.transpose(1, 2);
  }

  std::int64_t layer_, heads_, key_heads_, head_width_;
  double dropout_, cap_;
  std::optional<double> scale_;
  HeadNorms head_norms_;
  bool is_paired_;
  std::shared_ptr<Linear> q_, k_, v_, qkv_, o_;
  std::shared_ptr<Norm> q_norm_, k_norm_;
};

class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(const Shape& shape) : activation_(shape.activation) {
    const auto linear = [&](const char* name, std::int64_t inputs, std::int64_t outputs) {
      return register_module(name, std::make_shared<Linear>(inputs, outputs, shape.mlp_bias));
    };
    if (shape.is_mlp_fused) {
      gate_up_ = linear("gate_up_proj", shape.width, 2 * shape.inner);
    } else {
      gate_ = linear("gate_proj", shape.width, shape.inner);
      up_ = linear("up_proj", shape.width, shape.inner);
    }
    down_ = linear("down_proj", shape.inner, shape.width);
  }
  torch::Tensor forward(const torch::Tensor& x) const {
    if (!gate_up_) return down_->forward(activation_(gate_->forward(x)) * up_->forward(x));
    const auto parts = gate_up_->forward(x).chunk(2, -1);
    return down_->forward(activation_(parts[0]) * parts[1]);
  }

 private:
  language::Activation activation_;
  std::shared_ptr<Linear> gate_, up_, gate_up_, down_;
};

}  // namespace

class Layer final : public torch::nn::Module {
 public:
  Layer(const Shape& shape, std::int64_t layer)
      : scale_(shape.half_scale),
        dropout_(shape.half_dropout),
        is_parallel_(shape.norms == Norms::parallel),
        attention_(register_module("self_attn", std::make_shared<Attention>(shape, layer))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(shape))) {
    const auto norm = [&](const char* name) {
      return register_module(name, std::make_shared<Norm>(shape, shape.width));
    };
    // The published name "post_attention_layernorm" is the norm before the MLP if there is none behind the attention.
    if (shape.norms != Norms::after) before_attention_ = norm("input_layernorm");
    if (shape.norms == Norms::parallel) return;
    (shape.norms == Norms::before ? before_mlp_ : behind_attention_) = norm("post_attention_layernorm");
    if (shape.norms == Norms::around) before_mlp_ = norm("pre_feedforward_layernorm");
    if (shape.norms != Norms::before) behind_mlp_ = norm("post_feedforward_layernorm");
  }

  torch::Tensor forward(const torch::Tensor& x, const RotaryAngles& turn, const language::AttentionMask& mask) const {
    const auto given = before_attention_ ? before_attention_->add(x, {}).normed : x;
    const auto attended = branch(behind_attention_, attention_->forward(given, turn, mask));
    if (!before_mlp_) {
      const auto sum = x + attended;
      return sum + branch(behind_mlp_, mlp_->forward(is_parallel_ ? given : sum));
    }
    const auto [sum, normed] = before_mlp_->add(x, attended);
    return sum + branch(behind_mlp_, mlp_->forward(normed));
  }

 private:
  // Returns what is added to the stream for the output of attention or MLP.
  torch::Tensor branch(const std::shared_ptr<Norm>& behind, const torch::Tensor& output) const {
    const auto normed = behind ? behind->forward(output) : output;
    const auto kept = dropout_ > 0 ? at::dropout(normed, dropout_, is_training()) : normed;
    return scale_ == 1 ? kept : kept * scale_;
  }

  double scale_, dropout_;
  bool is_parallel_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<Mlp> mlp_;
  std::shared_ptr<Norm> before_attention_, behind_attention_, before_mlp_, behind_mlp_;  // some are missing
};

Network::Network(const Shape& shape, std::vector<Rope> ropes, std::uint64_t seed)
    : ropes_(std::move(ropes)),
      kinds_(shape.kinds),
      padding_(shape.padding),
      embedding_scale_(shape.embedding_scale),
      logit_divisor_(shape.logit_divisor),
      logit_cap_(shape.logit_cap) {
  const auto body = register_module("model", std::make_shared<torch::nn::Module>("model"));
  embedding_ = language::add_matrix(*body, "embed_tokens", shape.vocabulary, shape.width);
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    layers_.push_back(std::make_shared<Layer>(shape, i));
    list->push_back(layers_.back());
  }
  body->register_module("layers", list);
  norm_ = body->register_module("norm", std::make_shared<Norm>(shape, shape.width));
  if (!shape.is_tied) head_ = language::add_matrix(*this, "lm_head", shape.vocabulary, shape.width);
  language::draw_weights(*this, seed, [&](const std::string&) { return shape.deviation; });
}

std::int64_t Network::cacheable() const {
  std::int64_t least = 0;
  for (const auto& rope : ropes_) {
    if (rope.cacheable() > 0) least = least == 0 ? rope.cacheable() : std::min(least, rope.cacheable());
  }
  return least;
}

torch::Tensor Network::features(const language::Texts& texts) {
  const auto time = texts.tokens.size(1), past = texts.past();
  const auto of_texts = [&](const torch::Tensor& table) {
    if (texts.positions.defined()) return at::embedding(table, texts.positions).unsqueeze(1);
    return past == 0 ? table : table.narrow(0, past, time);
  };
  std::vector<RotaryAngles> turns;
  for (auto& rope : ropes_) {
    const auto [cosines, sines] = rope.tables(past + time, texts.tokens.device(), texts.longest);
    turns.push_back({of_texts(cosines), of_texts(sines)});
  }
  std::map<std::int64_t, language::AttentionMask> masks;
  auto x = at::embedding(embedding_, texts.tokens, padding_);
  if (embedding_scale_ != 1) x = x * embedding_scale_;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& [window, rope] = kinds_[i];
    const auto& mask = masks.try_emplace(window, texts, window).first->second;
    const auto turn = rope ? turns[*rope] : RotaryAngles();
    x = run([layer = layers_[i].get(), turn, mask](const torch::Tensor& y) { return layer->forward(y, turn, mask); },
            x);
  }
  return norm_->forward(x);
}

torch::Tensor Network::logits(const torch::Tensor& features) const {
  auto logits = language::Network::logits(features);
  if (logit_divisor_ != 1) logits = logits / logit_divisor_;
  return logit_cap_ == 0 ? logits : language::capped(logits, logit_cap_);
}

const torch::Tensor& Network::head() const {
  return is_tied() ? embedding_ : head_;
}

}  // namespace llama
