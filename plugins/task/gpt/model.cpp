// The network of task/gpt; see model.h.
#include "model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

namespace gpt {

namespace {

constexpr double deviation = 0.02;

torch::Tensor drop(const torch::Tensor& x, double p, bool training) {
  return p > 0 ? at::dropout(x, p, training) : x;
}

class Embedding final : public torch::nn::Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width)
      : weight(register_parameter("weight", torch::empty({rows, width}))) {}
  torch::Tensor weight;
};

// GPT-2's Conv1D: a linear map whose weight is stored [inputs, outputs].
class Linear final : public torch::nn::Module {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs)
      : weight_(register_parameter("weight", torch::empty({inputs, outputs}))),
        bias_(register_parameter("bias", torch::zeros({outputs}))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return at::linear(x, weight_.t(), bias_); }

 private:
  torch::Tensor weight_, bias_;
};

}  // namespace

class LayerNorm final : public torch::nn::Module {
 public:
  explicit LayerNorm(std::int64_t width)
      : weight_(register_parameter("weight", torch::ones({width}))),
        bias_(register_parameter("bias", torch::zeros({width}))) {}
  torch::Tensor forward(const torch::Tensor& x) const {
    return at::layer_norm(x, weight_.sizes(), weight_, bias_, 1e-5);
  }

 private:
  torch::Tensor weight_, bias_;
};

namespace {

class Attention final : public torch::nn::Module {
 public:
  explicit Attention(const Shape& shape)
      : heads_(shape.heads),
        dropout_(shape.dropout),
        qkv_(register_module("c_attn", std::make_shared<Linear>(shape.width, 3 * shape.width))),
        out_(register_module("c_proj", std::make_shared<Linear>(shape.width, shape.width))) {}

  torch::Tensor forward(const torch::Tensor& x) const {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    auto qkv = qkv_->forward(x).split(width, 2);
    for (auto& part : qkv) part = part.view({batch, time, heads_, width / heads_}).transpose(1, 2);
    auto y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, is_training() ? dropout_ : 0.0,
                                              /*is_causal=*/true);
    return out_->forward(y.transpose(1, 2).reshape({batch, time, width}));
  }

 private:
  std::int64_t heads_;
  double dropout_;
  std::shared_ptr<Linear> qkv_, out_;
};

class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(std::int64_t width)
      : in_(register_module("c_fc", std::make_shared<Linear>(width, 4 * width))),
        out_(register_module("c_proj", std::make_shared<Linear>(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return out_->forward(at::gelu(in_->forward(x), "tanh")); }

 private:
  std::shared_ptr<Linear> in_, out_;
};

}  // namespace

class Block final : public torch::nn::Module {
 public:
  explicit Block(const Shape& shape)
      : dropout_(shape.dropout),
        ln_1_(register_module("ln_1", std::make_shared<LayerNorm>(shape.width))),
        attn_(register_module("attn", std::make_shared<Attention>(shape))),
        ln_2_(register_module("ln_2", std::make_shared<LayerNorm>(shape.width))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(shape.width))) {}

  torch::Tensor forward(torch::Tensor x) const {
    x = x + drop(attn_->forward(ln_1_->forward(x)), dropout_, is_training());
    return x + drop(mlp_->forward(ln_2_->forward(x)), dropout_, is_training());
  }

 private:
  double dropout_;
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<Attention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<Mlp> mlp_;
};

Network::Network(const Shape& shape, std::uint64_t seed)
    : dropout_(shape.dropout), recompute_every_(static_cast<std::size_t>(shape.recompute_every)), keep_(shape.keep) {
  token_embedding_ = register_module("wte", std::make_shared<Embedding>(vocabulary, shape.width))->weight;
  position_embedding_ = register_module("wpe", std::make_shared<Embedding>(shape.context, shape.width))->weight;
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_shared<Block>(shape));
    list->push_back(blocks_.back());
  }
  register_module("h", list);
  last_norm_ = register_module("ln_f", std::make_shared<LayerNorm>(shape.width));
  initialise(shape.layers, seed);
}

// Weights into the residual stream are divided by the root of their number; biases and norms keep 0 and 1.
void Network::initialise(std::int64_t layers, std::uint64_t seed) {
  torch::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(layers));
  for (auto& parameter : named_parameters()) {
    if (parameter.value().dim() != 2) continue;
    parameter.value().normal_(0.0, parameter.key().ends_with("c_proj.weight") ? residual : deviation, generator);
  }
}

torch::Tensor Network::features(const torch::Tensor& tokens) {
  const auto time = tokens.size(1);
  // Uses the whole table where it fits, because a view of it would cost a copy of its gradient.
  auto positions = time == position_embedding_.size(0) ? position_embedding_ : position_embedding_.narrow(0, 0, time);
  auto x = drop(at::embedding(token_embedding_, tokens) + positions, dropout_, is_training());
  for (std::size_t i = 0; i < blocks_.size(); ++i) x = block(i, x);
  return last_norm_->forward(x);
}

torch::Tensor Network::block(std::size_t index, const torch::Tensor& x) {
  const auto forward = [block = blocks_[index].get()](const torch::Tensor& y) { return block->forward(y); };
  if (budgeted_ != nullptr) return budgeted_->block(static_cast<std::int64_t>(index), forward, x);
  const bool again = recompute_every_ > 0 && (index + 1) % recompute_every_ == 0;
  return again ? vernier::checkpoint(keep_, forward, x) : forward(x);
}

torch::Tensor Network::forward(const torch::Tensor& tokens) {
  return at::linear(features(tokens), token_embedding_);
}

torch::Tensor Network::next_token(const torch::Tensor& tokens) {
  return at::linear(features(tokens).select(1, -1), token_embedding_);
}

}  // namespace gpt
