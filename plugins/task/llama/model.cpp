// The network of task/llama; see model.h.
#include "model.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <torch/nn/modules/container/modulelist.h>

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

struct Turn {
  torch::Tensor cosines, sines;  // [time, head_width / 2], or [batch, 1, time, head_width / 2]
};

}  // namespace

class RmsNorm final : public torch::nn::Module {
 public:
  explicit RmsNorm(const Shape& shape)
      : epsilon_(shape.epsilon), weight_(register_parameter("weight", torch::ones({shape.width}))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return at::rms_norm(x, weight_.sizes(), weight_, epsilon_); }

 private:
  double epsilon_;
  torch::Tensor weight_;
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
        q_(linear("q_proj", shape.width, heads_ * head_width_, shape)),
        k_(linear("k_proj", shape.width, key_heads_ * head_width_, shape)),
        v_(linear("v_proj", shape.width, key_heads_ * head_width_, shape)),
        o_(linear("o_proj", heads_ * head_width_, shape.width, shape)) {}

  torch::Tensor forward(const torch::Tensor& x, const Turn& turn, const language::Sight& sight) const {
    const auto batch = x.size(0), time = x.size(1);
    const auto in_heads = [&](const torch::Tensor& y, std::int64_t heads) {
      return y.view({batch, time, heads, head_width_}).transpose(1, 2);
    };
    auto q = in_heads(q_->forward(x), heads_), k = in_heads(k_->forward(x), key_heads_);
    const auto v = in_heads(v_->forward(x), key_heads_);
    const auto cosines = turn.cosines.to(q.scalar_type()), sines = turn.sines.to(q.scalar_type());
    q = turned(q, cosines, sines);
    k = turned(k, cosines, sines);
    const auto y = language::attend(q, k, v, sight, layer_, is_training() ? dropout_ : 0.0);
    return o_->forward(y.transpose(1, 2).reshape({batch, time, heads_ * head_width_}));
  }

 private:
  std::shared_ptr<Linear> linear(const char* name, std::int64_t inputs, std::int64_t outputs, const Shape& shape) {
    return register_module(name, std::make_shared<Linear>(inputs, outputs, shape.attention_bias));
  }

  std::int64_t layer_, heads_, key_heads_, head_width_;
  double dropout_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
};

class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(const Shape& shape)
      : activation_(shape.activation),
        gate_(register_module("gate_proj", std::make_shared<Linear>(shape.width, shape.inner, shape.mlp_bias))),
        up_(register_module("up_proj", std::make_shared<Linear>(shape.width, shape.inner, shape.mlp_bias))),
        down_(register_module("down_proj", std::make_shared<Linear>(shape.inner, shape.width, shape.mlp_bias))) {}
  torch::Tensor forward(const torch::Tensor& x) const {
    return down_->forward(activation_(gate_->forward(x)) * up_->forward(x));
  }

 private:
  language::Activation activation_;
  std::shared_ptr<Linear> gate_, up_, down_;
};

}  // namespace

class Layer final : public torch::nn::Module {
 public:
  Layer(const Shape& shape, std::int64_t layer)
      : attention_(register_module("self_attn", std::make_shared<Attention>(shape, layer))),
        mlp_(register_module("mlp", std::make_shared<Mlp>(shape))),
        first_norm_(register_module("input_layernorm", std::make_shared<RmsNorm>(shape))),
        second_norm_(register_module("post_attention_layernorm", std::make_shared<RmsNorm>(shape))) {}

  torch::Tensor forward(torch::Tensor x, const Turn& turn, const language::Sight& sight) const {
    x = x + attention_->forward(first_norm_->forward(x), turn, sight);
    return x + mlp_->forward(second_norm_->forward(x));
  }

 private:
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<Mlp> mlp_;
  std::shared_ptr<RmsNorm> first_norm_, second_norm_;
};

Network::Network(const Shape& shape, Rope rope, std::uint64_t seed) : rope_(std::move(rope)) {
  const auto body = register_module("model", std::make_shared<torch::nn::Module>("model"));
  embedding_ = language::add_matrix(*body, "embed_tokens", shape.vocabulary, shape.width);
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    layers_.push_back(std::make_shared<Layer>(shape, i));
    list->push_back(layers_.back());
  }
  body->register_module("layers", list);
  norm_ = body->register_module("norm", std::make_shared<RmsNorm>(shape));
  if (!shape.is_tied) head_ = language::add_matrix(*this, "lm_head", shape.vocabulary, shape.width);
  language::draw_weights(*this, seed, [&](const std::string&) { return shape.deviation; });
}

torch::Tensor Network::features(const language::Texts& texts) {
  const auto time = texts.tokens.size(1), past = texts.past();
  const auto [cosines, sines] = rope_.tables(past + time, texts.tokens.device());
  const auto of_texts = [&](const torch::Tensor& table) {
    if (texts.positions.defined()) return at::embedding(table, texts.positions).unsqueeze(1);
    return past == 0 ? table : table.narrow(0, past, time);
  };
  const Turn turn{of_texts(cosines), of_texts(sines)};
  const language::Sight sight(texts);
  auto x = at::embedding(embedding_, texts.tokens);
  for (const auto& layer : layers_) {
    x = run([layer = layer.get(), turn, sight](const torch::Tensor& y) { return layer->forward(y, turn, sight); }, x);
  }
  return norm_->forward(x);
}

torch::Tensor Network::logits(const torch::Tensor& features) const {
  return at::linear(features, is_tied() ? embedding_ : head_);
}

}  // namespace llama
