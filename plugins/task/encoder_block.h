// The block of the transformer encoders of task/sequence and task/text, with the normalization before each part (Xiong
// et al. 2020, "On Layer Normalization in the Transformer Architecture").
#pragma once

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <vernier/add_norm.h>

#include <cstdint>
#include <optional>

inline torch::Tensor affine(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

class EncoderBlock final : public torch::nn::Module {
 public:
  EncoderBlock(std::int64_t width, std::int64_t heads, double dropout)
      : heads_(heads),
        ln_1_(register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out_(register_module("out", torch::nn::Linear(width, width))),
        ln_2_(register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up_(register_module("up", torch::nn::Linear(width, 4 * width))),
        down_(register_module("down", torch::nn::Linear(4 * width, width))),
        drop_(register_module("drop", torch::nn::Dropout(dropout))) {}

  // x: [samples, steps, width]. mask: undefined, or bool [samples, 1, 1, steps], false where nothing attends to.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask = {}) {
    const auto parts = affine(qkv_, add(ln_1_, x, {}).normed).unflatten(2, {3, heads_, -1}).permute({2, 0, 3, 1, 4});
    const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
    const auto y = at::scaled_dot_product_attention(parts.select(0, 0), parts.select(0, 1), parts.select(0, 2), given);
    const auto [sum, normed] = add(ln_2_, x, drop_->forward(affine(out_, y.transpose(1, 2).flatten(2))));
    return sum + drop_->forward(affine(down_, at::gelu(affine(up_, normed))));
  }

 private:
  static vernier::AddedNorm add(const torch::nn::LayerNorm& norm, const torch::Tensor& x, const torch::Tensor& branch) {
    return vernier::add_norm(x, branch, {norm->weight, norm->bias, norm->options.eps()});
  }

  std::int64_t heads_;
  torch::nn::LayerNorm ln_1_;
  torch::nn::Linear qkv_, out_;
  torch::nn::LayerNorm ln_2_;
  torch::nn::Linear up_, down_;
  torch::nn::Dropout drop_;
};

// The same in PyTorch; WIDTH, HEADS and DROPOUT are constants of its file.
inline constexpr const char* python_encoder_block = R"(

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(self.ln_1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)))))
)";
