// The network of task/gpt; see model.h.
#include "model.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <torch/nn/modules/container/modulelist.h>
#include <vernier/add_norm.h>
#include <vernier/text/gelu_mlp.h>

#include <cmath>
#include <optional>

namespace gpt {

namespace {

torch::Tensor drop(const torch::Tensor& x, double p, bool training) {
  return p > 0 ? at::dropout(x, p, training) : x;
}

// GPT-2's Conv1D: a linear map whose weight is stored [inputs, outputs].
class Linear final : public torch::nn::Module {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs)
      : weight_(register_parameter("weight", torch::empty({inputs, outputs}))),
        bias_(register_parameter("bias", torch::zeros({outputs}))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return at::linear(x, weight_.t(), bias_); }
  const torch::Tensor& weight() const { return weight_; }
  const torch::Tensor& bias() const { return bias_; }

 private:
  torch::Tensor weight_, bias_;
};

}  // namespace

class LayerNorm final : public torch::nn::Module {
 public:
  explicit LayerNorm(const Shape& shape)
      : epsilon_(shape.epsilon),
        weight_(register_parameter("weight", torch::ones({shape.width}))),
        bias_(register_parameter("bias", torch::zeros({shape.width}))) {}
  torch::Tensor forward(const torch::Tensor& x) const {
    return at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_);
  }
  // Returns the sum, and its norm for a linear layer. branch: undefined: x alone.
  vernier::AddedNorm add(const torch::Tensor& x, const torch::Tensor& branch) const {
    return vernier::add_norm(x, branch, {weight_, bias_, epsilon_});
  }

 private:
  double epsilon_;
  torch::Tensor weight_, bias_;
};

namespace {

class Attention final : public torch::nn::Module {
 public:
  Attention(const Shape& shape, std::int64_t layer)
      : layer_(layer),
        heads_(shape.heads),
        dropout_(shape.attention_dropout),
        scale_(scale_of(shape, layer)),
        qkv_(register_module("c_attn", std::make_shared<Linear>(shape.width, 3 * shape.width))),
        out_(register_module("c_proj", std::make_shared<Linear>(shape.width, shape.width))) {}

  torch::Tensor forward(const torch::Tensor& x, const language::AttentionMask& mask) const {
    const auto width = x.size(2);
    auto qkv = qkv_->forward(x).split(width, 2);
    for (auto& part : qkv) part = part.unflatten(2, {heads_, width / heads_}).transpose(1, 2);
    const auto y = language::attend(qkv[0], qkv[1], qkv[2], mask, layer_, is_training() ? dropout_ : 0.0, scale_);
    return out_->forward(y.transpose(1, 2).flatten(2));
  }

 private:
  // Nothing: LibTorch's own, the inverse root of a head's width.
  static std::optional<double> scale_of(const Shape& shape, std::int64_t layer) {
    if (shape.scales_attention && !shape.scales_by_layer) return std::nullopt;
    const auto width = static_cast<double>(shape.width) / static_cast<double>(shape.heads);
    return (shape.scales_attention ? 1 / std::sqrt(width) : 1.0) /
           (shape.scales_by_layer ? static_cast<double>(layer) + 1 : 1.0);
  }

  std::int64_t layer_, heads_;
  double dropout_;
  std::optional<double> scale_;
  std::shared_ptr<Linear> qkv_, out_;
};

class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(const Shape& shape)
      : activation_(shape.activation),
        in_(register_module("c_fc", std::make_shared<Linear>(shape.width, inner(shape)))),
        out_(register_module("c_proj", std::make_shared<Linear>(inner(shape), shape.width))) {}
  torch::Tensor forward(const torch::Tensor& x) const {
    if (activation_ == language::gelu_by_tanh) {
      const auto y = vernier::gelu_mlp(x, {in_->weight(), in_->bias(), out_->weight(), out_->bias()});
      if (y.defined()) return y;
    }
    return out_->forward(activation_(in_->forward(x)));
  }

 private:
  static std::int64_t inner(const Shape& shape) { return shape.inner > 0 ? shape.inner : 4 * shape.width; }

  language::Activation activation_;
  std::shared_ptr<Linear> in_, out_;
};

}  // namespace

class Block final : public torch::nn::Module {
 public:
  Block(const Shape& shape, std::int64_t layer)
      : dropout_(shape.dropout),
        ln_1_(register_module("ln_1", std::make_shared<LayerNorm>(shape))),
        attn_(register_module("attn", std::make_shared<Attention>(shape, layer))),
        ln_2_(register_module("ln_2", std::make_shared<LayerNorm>(shape))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(shape))) {}

  torch::Tensor forward(const torch::Tensor& x, const language::AttentionMask& mask) const {
    const auto attended = attn_->forward(ln_1_->add(x, {}).normed, mask);
    const auto [sum, normed] = ln_2_->add(x, drop(attended, dropout_, is_training()));
    return sum + drop(mlp_->forward(normed), dropout_, is_training());
  }

 private:
  double dropout_;
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<Attention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<Mlp> mlp_;
};

// Weights into the residual stream are divided by the root of their number; biases and norms keep 0 and 1.
Network::Network(const Shape& shape, std::uint64_t seed)
    : embedding_dropout_(shape.embedding_dropout),
      recompute_every_(static_cast<std::size_t>(shape.recompute_every)),
      keep_(shape.keep) {
  token_embedding_ = language::add_matrix(*this, "wte", shape.vocabulary, shape.width);
  position_embedding_ = language::add_matrix(*this, "wpe", shape.context, shape.width);
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_shared<Block>(shape, i));
    list->push_back(blocks_.back());
  }
  register_module("h", list);
  last_norm_ = register_module("ln_f", std::make_shared<LayerNorm>(shape));
  if (!shape.is_tied) head_ = language::add_matrix(*this, "lm_head", shape.vocabulary, shape.width);
  const double residual = shape.deviation / std::sqrt(2.0 * static_cast<double>(shape.layers));
  language::draw_weights(*this, seed, [&](const std::string& name) {
    return name.ends_with("c_proj.weight") ? residual : shape.deviation;
  });
}

torch::Tensor Network::positions_of(const language::Texts& texts) const {
  if (texts.positions.defined()) return at::embedding(position_embedding_, texts.positions);
  const auto time = texts.tokens.size(1);
  // Uses the whole table where it fits, because a view of it would cost a copy of its gradient.
  return time == position_embedding_.size(0) ? position_embedding_ : position_embedding_.narrow(0, texts.past(), time);
}

torch::Tensor Network::features(const language::Texts& texts) {
  auto x = drop(at::embedding(token_embedding_, texts.tokens) + positions_of(texts), embedding_dropout_, is_training());
  const language::AttentionMask mask(texts);
  for (std::size_t i = 0; i < blocks_.size(); ++i) x = block(i, x, mask);
  return last_norm_->forward(x);
}

torch::Tensor Network::block(std::size_t index, const torch::Tensor& x, const language::AttentionMask& mask) {
  const auto forward = [block = blocks_[index].get(), mask](const torch::Tensor& y) { return block->forward(y, mask); };
  if (budgeted_ != nullptr) return budgeted_->block(static_cast<std::int64_t>(index), forward, x);
  const bool again = recompute_every_ > 0 && (index + 1) % recompute_every_ == 0;
  return again ? vernier::checkpoint(keep_, forward, x) : run(forward, x);
}

const torch::Tensor& Network::head() const {
  return is_tied() ? token_embedding_ : head_;
}

}  // namespace gpt
