#include "networks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <vernier/data/baselines.h>

#include <type_traits>

#include "../encoder_block.h"
#include "../python_load.h"

namespace {

// Zeros [layers, samples, width]. They come from operators of the input, so that a traced model fits any batch.
torch::Tensor first_state(const torch::Tensor& x, std::int64_t layers, std::int64_t width) {
  const auto zero = at::zeros_like(x.select(1, 0).narrow(1, 0, 1));
  return zero.expand({-1, width}).unsqueeze(0).expand({layers, -1, -1}).contiguous();
}

// Rnn: torch::nn::LSTM, whose state is two tensors, or torch::nn::GRU, whose state is one.
template <class Rnn, class Options>
class Recurrent final : public SequenceNetwork {
 public:
  Recurrent(const Plan& plan, Recomputed recomputed) : SequenceNetwork(plan, std::move(recomputed)), plan_(plan) {
    const auto options =
        Options(plan.features, plan.width).num_layers(plan.layers).dropout(plan.dropout).batch_first(true);
    rnn_ = register_module("rnn", Rnn(options));
    make_head(plan.width);
  }

 private:
  torch::Tensor summary(const torch::Tensor& x) override {
    const auto part = [this](const torch::Tensor& input) {
      const auto zeros = first_state(input, plan_.layers, plan_.width);
      if constexpr (std::is_same_v<Rnn, torch::nn::LSTM>) {
        return std::get<0>(rnn_->forward(input, std::tuple(zeros, zeros))).select(1, -1);
      } else {
        return std::get<0>(rnn_->forward(input, zeros)).select(1, -1);
      }
    };
    return recomputed()(part, x);
  }

  Plan plan_;
  Rnn rnn_{nullptr};
};
using Lstm = Recurrent<torch::nn::LSTM, torch::nn::LSTMOptions>;
using Gru = Recurrent<torch::nn::GRU, torch::nn::GRUOptions>;

class Transformer final : public SequenceNetwork {
 public:
  Transformer(const Plan& plan, Recomputed recomputed)
      : SequenceNetwork(plan, std::move(recomputed)),
        embed_(register_module("embed", torch::nn::Linear(plan.features, plan.width))),
        position_(register_parameter("position", torch::empty({plan.steps, plan.width}).normal_(0, 0.02))),
        ln_(register_module("ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({plan.width})))) {
    torch::nn::ModuleList list;
    for (std::int64_t i = 0; i < plan.layers; ++i) {
      blocks_.push_back(std::make_shared<EncoderBlock>(plan.width, plan.heads, plan.dropout));
      list->push_back(blocks_.back());
    }
    register_module("blocks", list);
    make_head(plan.width);
  }

 private:
  torch::Tensor summary(const torch::Tensor& x) override {
    auto y = affine(embed_, x) + position_;
    for (const auto& block : blocks_) {
      y = recomputed()([block](const torch::Tensor& input) { return block->forward(input); }, y);
    }
    return ln_->forward(y).mean(1);
  }

  torch::nn::Linear embed_;
  torch::Tensor position_;
  torch::nn::LayerNorm ln_;
  std::vector<std::shared_ptr<EncoderBlock>> blocks_;
};

constexpr const char* python_head = R"("""The network of a run of task/sequence in PyTorch.

    model = load("model.safetensors")
    output = model(sequences)    # [batch, steps, features], in the units of the data, float32 or float64
"""

import torch
from torch import nn
from torch.nn import functional as F

)";

constexpr const char* python_model = R"(

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("input_mean", torch.zeros(FEATURES, dtype=torch.float64))
        self.register_buffer("input_std", torch.ones(FEATURES, dtype=torch.float64))
        if not HAS_CLASSES:
            self.register_buffer("output_mean", torch.zeros(OUTPUT, dtype=torch.float64))
            self.register_buffer("output_std", torch.ones(OUTPUT, dtype=torch.float64))
        if MODEL == "transformer":
            self.embed = nn.Linear(FEATURES, WIDTH)
            self.position = nn.Parameter(torch.zeros(STEPS, WIDTH))
            self.blocks, self.ln = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        else:
            kind = {"lstm": nn.LSTM, "gru": nn.GRU}[MODEL]
            self.rnn = kind(FEATURES, WIDTH, LAYERS, dropout=DROPOUT, batch_first=True)
        self.weight = nn.Parameter(torch.zeros(torch.Size(OUTPUT).numel(), WIDTH))
        self.bias = nn.Parameter(torch.zeros(torch.Size(OUTPUT).numel()))

    def summary(self, x):
        if MODEL != "transformer":
            return self.rnn(x)[0][:, -1]
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.ln(x).mean(1)

    def forecast(self, window):
        seen = window.double()
        variance = (seen - seen.mean(1, keepdim=True)).square().mean(1, keepdim=True)
        deviation = (variance + self.input_std.square() * 1e-6).sqrt()
        x = self.summary(((seen - seen[:, -1:]) / deviation).to(self.weight.dtype))
        x = F.linear(x, self.weight, self.bias).unflatten(1, OUTPUT)
        before = seen[:, -SEASON:, OUTPUTS].repeat(1, -(-OUTPUT[0] // SEASON), 1)[:, : OUTPUT[0]]
        return x * deviation[:, :, OUTPUTS] + before

    def forward(self, sequences):
        if SEASON:
            return self.forecast(sequences)
        x = self.summary(((sequences - self.input_mean) / self.input_std).to(self.weight.dtype))
        x = F.linear(x, self.weight, self.bias).unflatten(1, OUTPUT)
        return x if HAS_CLASSES else x * self.output_std + self.output_mean
)";

}  // namespace

SequenceNetwork::SequenceNetwork(const Plan& plan, Recomputed recomputed)
    : plan_(plan), recomputed_(std::move(recomputed)) {
  input_mean_ = register_buffer("input_mean", at::zeros({plan.features}, torch::kFloat64));
  input_std_ = register_buffer("input_std", at::ones({plan.features}, torch::kFloat64));
  if (plan.has_classes) return;
  output_mean_ = register_buffer("output_mean", at::zeros(plan.output, torch::kFloat64));
  output_std_ = register_buffer("output_std", at::ones(plan.output, torch::kFloat64));
}

void SequenceNetwork::make_head(std::int64_t width) {
  const auto outputs = c10::multiply_integers(plan_.output);
  const torch::nn::Linear drawn(width, outputs);
  weight_ = register_parameter("weight", drawn->weight);
  bias_ = register_parameter("bias", drawn->bias);
  if (plan_.season == 0) return;
  const torch::NoGradGuard no_grad;  // training begins with the forecast that repeats the season
  weight_.zero_(), bias_.zero_();
}

torch::Tensor SequenceNetwork::outputs_of(const torch::Tensor& unit) {
  const auto x = unit.to(parameters().front().scalar_type());
  return at::linear(summary(x), weight_, bias_).unflatten(1, plan_.output);
}

// The network sees its window relative to the last value, in units of the window's deviation. It adds to the forecast
// that repeats the last season, in the same units: a level that no training window had is forecast too.
torch::Tensor SequenceNetwork::forecast(const torch::Tensor& window) {
  constexpr double least = 1e-6;  // variance of a window without any, as a share of that of the training
  const auto seen = window.to(torch::kFloat64);
  const auto variance = (seen - seen.mean(1, /*keepdim=*/true)).square().mean(1, /*keepdim=*/true);
  const auto deviation = (variance + input_std_.square() * least).sqrt();
  const auto unit = (seen - seen.narrow(1, plan_.steps - 1, 1)) / deviation;
  const auto predicted = [this](const torch::Tensor& features) {
    std::vector<torch::Tensor> each;
    for (const auto output : plan_.outputs) each.push_back(features.narrow(2, output, 1));
    return at::cat(each, 2);
  };
  const auto before = vernier::season_before(predicted(seen), plan_.output[0], plan_.season);
  return outputs_of(unit) * predicted(deviation) + before;
}

torch::Tensor SequenceNetwork::forward(const torch::Tensor& sequences) {
  if (plan_.season > 0) return forecast(sequences);
  // In float64: of seconds since 1970, float32 has no more than steps of 128.
  const auto x = outputs_of((sequences - input_mean_) / input_std_);
  return plan_.has_classes ? x : x * output_std_ + output_mean_;
}

void SequenceNetwork::set_norm(const torch::Tensor& input_mean, const torch::Tensor& input_std,
                               const torch::Tensor& output_mean, const torch::Tensor& output_std) {
  const torch::NoGradGuard no_grad;
  input_mean_.copy_(input_mean);
  input_std_.copy_(input_std);
  if (plan_.has_classes) return;
  output_mean_.copy_(output_mean);
  output_std_.copy_(output_std);
}

std::shared_ptr<SequenceNetwork> make_network(const Plan& plan, Recomputed recomputed) {
  if (plan.model == "lstm") return std::make_shared<Lstm>(plan, std::move(recomputed));
  if (plan.model == "gru") return std::make_shared<Gru>(plan, std::move(recomputed));
  return std::make_shared<Transformer>(plan, std::move(recomputed));
}

std::string python_source(const Plan& plan) {
  std::string output, outputs;
  for (const auto size : plan.output) output += std::to_string(size) + ", ";
  for (const auto feature : plan.outputs) outputs += std::to_string(feature) + ", ";
  return c10::str(python_head, "MODEL, HAS_CLASSES = \"", plan.model, "\", ", plan.has_classes ? "True" : "False",
                  "\nWIDTH, LAYERS, HEADS, DROPOUT = ", plan.width, ", ", plan.layers, ", ", plan.heads, ", ",
                  plan.dropout, "\nSTEPS, FEATURES, OUTPUT = ", plan.steps, ", ", plan.features, ", (", output,
                  ")\nSEASON, OUTPUTS = ", plan.season, ", [", outputs, "]\n",
                  plan.model == "transformer" ? python_encoder_block : "", python_model, python_load);
}
