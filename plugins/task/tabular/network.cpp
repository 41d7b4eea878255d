#include "network.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

namespace tabular {

namespace {

// x + second(dropout(relu(first(norm(x))))): a block of He et al., with the norm before it.
class Block final : public torch::nn::Module {
 public:
  Block(std::int64_t width, double dropout)
      : dropout_(dropout),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        first_(register_module("first", torch::nn::Linear(width, width))),
        second_(register_module("second", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + second_->forward(at::dropout(at::relu(first_->forward(norm_->forward(x))), dropout_, is_training()));
  }

 private:
  double dropout_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear first_, second_;
};

// Guo and Berkhahn, "Entity Embeddings of Categorical Variables" (2016), leave it open; fast.ai's older rule.
std::int64_t embedding_width(std::int64_t codes) {
  return std::min<std::int64_t>(50, (codes + 1) / 2);
}

}  // namespace

Network::Network(const Shape& shape, CallPart call) : shape_(shape), call_(std::move(call)) {
  mean = register_buffer("mean", torch::zeros({shape.numbers}, torch::kFloat64));
  deviation = register_buffer("deviation", torch::ones({shape.numbers}, torch::kFloat64));
  target_mean = register_buffer("target_mean", torch::zeros({}, torch::kFloat64));
  target_deviation = register_buffer("target_deviation", torch::ones({}, torch::kFloat64));
  register_module("embeddings", embeddings_);
  register_module("layers", layers_);
  std::int64_t width = shape.numbers;
  for (const auto codes : shape.categories) {
    torch::nn::Embedding embedding(codes, embedding_width(codes));
    const torch::NoGradGuard no_grad;
    embedding->weight.select(0, codes - 1).zero_();  // unseen categories have this code; it is never trained
    embeddings_->push_back(embedding);
    width += embedding_width(codes);
  }
  for (std::size_t i = 0; i < shape.hidden.size(); ++i) {
    if (shape.residual && i > 0) {
      layers_->push_back(std::make_shared<Block>(width, shape.dropout));
    } else {
      layers_->push_back(torch::nn::Linear(width, shape.hidden[i]));
    }
    width = shape.hidden[i];
  }
  last_ = register_module("last", torch::nn::Linear(width, shape.outputs));
}

torch::Tensor Network::forward(const torch::Tensor& numbers, const torch::Tensor& categories) {
  std::vector<torch::Tensor> parts;
  if (shape_.numbers > 0) parts.push_back((numbers - mean) / deviation);
  for (std::size_t i = 0; i < embeddings_->size(); ++i) {
    parts.push_back(
        embeddings_->at<torch::nn::EmbeddingImpl>(i).forward(categories.select(1, static_cast<std::int64_t>(i))));
  }
  // Numbers are standardised in float64: of seconds since 1970, float32 has no more than steps of 128.
  const auto& first = shape_.hidden.empty() ? last_->weight : layers_->at<torch::nn::LinearImpl>(0).weight;
  auto x = (parts.size() == 1 ? parts[0] : at::cat(parts, 1)).to(first.scalar_type());
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    x = call_(
        [this, i](const torch::Tensor& input) {
          if (shape_.residual && i > 0) return layers_->at<Block>(i).forward(input);
          const auto output = layers_->at<torch::nn::LinearImpl>(i).forward(input);
          return shape_.residual ? output : at::dropout(at::relu(output), shape_.dropout, is_training());
        },
        x);
  }
  const auto output = last_->forward(x);
  if (shape_.outputs > 1) return output;
  return output.squeeze(1).to(torch::kFloat64)  // numbers without dimensions do not promote
             * target_deviation +
         target_mean;
}

void Network::standardise(const torch::Tensor& numbers, const torch::Tensor& targets) {
  const auto spread = [](const torch::Tensor& values) {
    const auto of_column = values.to(torch::kFloat64).std(0, /*unbiased=*/false);
    return torch::where(of_column > 0, of_column, torch::ones_like(of_column));  // one value stays as it is
  };
  if (shape_.numbers > 0) {
    mean.copy_(numbers.to(torch::kFloat64).mean(0));
    deviation.copy_(spread(numbers));
  }
  if (!targets.defined()) return;
  target_mean.copy_(targets.to(torch::kFloat64).mean());
  target_deviation.copy_(spread(targets));
}

}  // namespace tabular
