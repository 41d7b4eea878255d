#include "networks.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool3d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <vernier/json_text.h>
#include <vernier/random_state.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>
#include <utility>

#include "../python_load.h"

namespace {

// Layers over the two dimensions of an image, or over time as well.
template <std::size_t dimensions>
using Conv = std::conditional_t<dimensions == 3, torch::nn::Conv3d, torch::nn::Conv2d>;
template <std::size_t dimensions>
using Norm = std::conditional_t<dimensions == 3, torch::nn::BatchNorm3d, torch::nn::BatchNorm2d>;

// Without a bias, which the normalization would take away again.
template <std::size_t dimensions = 2>
Conv<dimensions> convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size, std::int64_t stride = 1) {
  return Conv<dimensions>(
      torch::nn::ConvOptions<dimensions>(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

at::Generator generator_of(std::uint64_t seed) {
  return vernier::own_generator(seed);
}

// Batch normalization. is_again: it leaves the running statistics alone.
template <class Layer>
torch::Tensor normalized(Layer& norm, const torch::Tensor& x, bool is_again) {
  if (!is_again || !norm.is_training()) return norm.forward(x);
  return at::batch_norm(x, norm.weight, norm.bias, {}, {}, /*training=*/true, 0, norm.options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

// The frames that a pooling over time leaves. A single one stays.
std::int64_t halved(std::int64_t frames) {
  return std::max<std::int64_t>(frames / 2, 1);
}

// Max pooling by two, of [samples, channels, height, width] or [samples, channels, frames, height, width].
torch::Tensor pooled(const torch::Tensor& x) {
  if (x.dim() == 4) return at::max_pool2d(x, 2);
  return at::max_pool3d(x, {std::min<std::int64_t>(x.size(2), 2), 2, 2});
}

// The numbers that two poolings leave of each image or clip.
std::int64_t features_of(const Plan& plan) {
  return 2 * plan.channels * halved(halved(plan.frames)) * (plan.height / 4) * (plan.width / 4);
}

// dimensions: 2 of images, 3 of clips.
template <std::size_t dimensions>
class Cnn final : public ImageNetwork {
 public:
  Cnn(const Plan& plan, std::uint64_t seed, Recomputed recomputed)
      : ImageNetwork(plan, std::move(recomputed)),
        conv_1_(register_module("conv_1", convolution<dimensions>(plan.colours, plan.channels, 3))),
        norm_1_(register_module("norm_1", Norm<dimensions>(plan.channels))),
        conv_2_(register_module("conv_2", convolution<dimensions>(plan.channels, 2 * plan.channels, 3))),
        norm_2_(register_module("norm_2", Norm<dimensions>(2 * plan.channels))),
        classify_(register_module("classify", torch::nn::Linear(features_of(plan), plan.classes))) {
    initialise(seed);
  }

 private:
  torch::Tensor logits(torch::Tensor x) override {
    if (x.dim() == 5) x = x.transpose(1, 2);  // channels before frames
    for (auto [conv, norm] : {std::pair(&conv_1_, &norm_1_), std::pair(&conv_2_, &norm_2_)}) {
      x = part(
          [conv = *conv, norm = *norm](const torch::Tensor& y, bool is_again) mutable {
            return pooled(at::relu(normalized(*norm, conv->forward(y), is_again)));
          },
          x);
    }
    return at::linear(x.flatten(1), classify_->weight, classify_->bias);
  }

  // As LibTorch does it, but from the seed alone.
  void initialise(std::uint64_t seed) {
    const torch::NoGradGuard no_grad;
    const auto generator = generator_of(seed);
    for (const auto& weight : {conv_1_->weight, conv_2_->weight, classify_->weight}) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(weight[0].numel()));
      weight.uniform_(-bound, bound, generator);
    }
    classify_->bias.zero_();
  }

  Conv<dimensions> conv_1_;
  Norm<dimensions> norm_1_;
  Conv<dimensions> conv_2_;
  Norm<dimensions> norm_2_;
  torch::nn::Linear classify_;
};

// torchvision.models.resnet.BasicBlock.
class BasicBlock final : public torch::nn::Module {
 public:
  BasicBlock(std::int64_t inputs, std::int64_t outputs, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(inputs, outputs, 3, stride))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(outputs))),
        conv2_(register_module("conv2", convolution(outputs, outputs, 3))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(outputs))) {
    if (stride == 1 && inputs == outputs) return;
    downsample_ = register_module(
        "downsample", torch::nn::Sequential(convolution(inputs, outputs, 1, stride), torch::nn::BatchNorm2d(outputs)));
  }
  torch::Tensor forward(const torch::Tensor& x, bool is_again) {
    auto y = at::relu(normalized(*bn1_, conv1_->forward(x), is_again));
    y = normalized(*bn2_, conv2_->forward(y), is_again);
    return at::relu(y + (downsample_.is_empty() ? x : shortcut(x, is_again)));
  }

 private:
  torch::Tensor shortcut(const torch::Tensor& x, bool is_again) {
    auto* conv = downsample_->ptr(0)->as<torch::nn::Conv2d>();
    auto* norm = downsample_->ptr(1)->as<torch::nn::BatchNorm2d>();
    return normalized(*norm, conv->forward(x), is_again);
  }

  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Sequential downsample_{nullptr};
};

struct Stages {
  std::vector<std::int64_t> blocks;
  std::int64_t channels;
  bool has_wide_stem;  // 7 x 7 and pooling
};

Stages stages_of(const Plan& plan) {
  const bool is_small = std::min(plan.height, plan.width) < 64;
  const bool has_wide_stem = plan.stem == "7x7" || (plan.stem == "auto" && !is_small);
  if (plan.model == "resnet18") return {{2, 2, 2, 2}, 64, has_wide_stem};
  if (plan.model == "resnet34") return {{3, 4, 6, 3}, 64, has_wide_stem};
  return {plan.blocks, plan.channels, has_wide_stem};
}

// torchvision.models.resnet.ResNet, for any number of stages.
class ResNet final : public ImageNetwork {
 public:
  ResNet(const Plan& plan, std::uint64_t seed, Recomputed recomputed) : ImageNetwork(plan, std::move(recomputed)) {
    const auto stages = stages_of(plan);
    has_wide_stem_ = stages.has_wide_stem;
    conv1_ = register_module("conv1", has_wide_stem_ ? convolution(plan.colours, stages.channels, 7, 2)
                                                     : convolution(plan.colours, stages.channels, 3));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(stages.channels));
    auto inputs = stages.channels, outputs = stages.channels;
    for (std::size_t stage = 0; stage < stages.blocks.size(); ++stage, outputs *= 2) {
      torch::nn::Sequential blocks;
      for (std::int64_t i = 0; i < stages.blocks[stage]; ++i, inputs = outputs) {
        blocks->push_back(std::make_shared<BasicBlock>(inputs, outputs, i == 0 && stage > 0 ? 2 : 1));
      }
      layers_.push_back(register_module(c10::str("layer", stage + 1), blocks));
    }
    fc_ = register_module("fc", torch::nn::Linear(inputs, plan.classes));
    initialise(seed);
  }

 private:
  torch::Tensor logits(torch::Tensor x) override {
    x = part(
        [this](const torch::Tensor& y, bool is_again) {
          const auto stem = at::relu(normalized(*bn1_, conv1_->forward(y), is_again));
          return has_wide_stem_ ? at::max_pool2d(stem, 3, 2, 1) : stem;
        },
        x);
    for (auto& layer : layers_) {
      for (std::size_t i = 0; i < layer->size(); ++i) {
        auto* block = layer->ptr<BasicBlock>(i).get();
        x = part([block](const torch::Tensor& y, bool is_again) { return block->forward(y, is_again); }, x);
      }
    }
    return at::linear(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1), fc_->weight, fc_->bias);
  }

  // As torchvision does it: He et al., "Delving Deep into Rectifiers", 2015, over the outputs.
  void initialise(std::uint64_t seed) {
    const torch::NoGradGuard no_grad;
    const auto generator = generator_of(seed);
    for (const auto& module : modules(/*include_self=*/false)) {
      const auto* conv = module->as<torch::nn::Conv2d>();
      if (conv == nullptr) continue;
      const auto outputs = conv->weight.numel() / conv->weight.size(1);
      conv->weight.normal_(0, std::sqrt(2.0 / static_cast<double>(outputs)), generator);
    }
    const double bound = 1.0 / std::sqrt(static_cast<double>(fc_->weight.size(1)));
    fc_->weight.uniform_(-bound, bound, generator);
    fc_->bias.uniform_(-bound, bound, generator);
  }

  bool has_wide_stem_ = false;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> layers_;
  torch::nn::Linear fc_{nullptr};
};

template <class T>
std::string python_list(const std::vector<T>& numbers) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& number : numbers) text << (text.tellp() > 0 ? ", " : "") << number;
  return "[" + text.str() + "]";
}

// JSON's texts are Python's, too, unless they have the surrogates that stand for characters beyond 16 bits.
std::string python_texts(const std::vector<std::string>& texts) {
  return vernier::json_text(nlohmann::json(texts));
}

constexpr const char* python_head = R"("""The network of a run of task/images in PyTorch.

    model = load_model(".")   # the folder of this file, or a safetensors file
    logits = model(images)    # [batch, classes] of uint8 images [batch, channels, height, width], or of clips
                              # [batch, frames, channels, height, width]
    names = predict(model, images)
"""

import torch
from torch import nn
from torch.nn import functional as F

)";

constexpr const char* python_cnn = R"(

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_1, self.norm_1 = nn.Conv2d(COLOURS, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.conv_2, self.norm_2 = (
            nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * CHANNELS),
        )
        self.classify = nn.Linear(FEATURES, CLASSES)

    def forward(self, images):
        x = normalized(images).to(self.classify.weight.dtype)
        x = F.max_pool2d(F.relu(self.norm_1(self.conv_1(x))), POOL_1)
        x = F.max_pool2d(F.relu(self.norm_2(self.conv_2(x))), POOL_2)
        return self.classify(x.flatten(1))
)";

constexpr const char* python_resnet = R"(

class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Model(nn.Module):
    """The names are those of torchvision.models.resnet."""

    def __init__(self):
        super().__init__()
        size = 7 if WIDE_STEM else 3
        self.conv1 = nn.Conv2d(COLOURS, CHANNELS, size, 2 if WIDE_STEM else 1, size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(CHANNELS)
        inputs = outputs = CHANNELS
        for stage, count in enumerate(BLOCKS):
            blocks = []
            for i in range(count):
                blocks.append(BasicBlock(inputs, outputs, 2 if i == 0 and stage > 0 else 1))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            outputs *= 2
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(normalized(images).to(self.fc.weight.dtype))))
        if WIDE_STEM:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(len(BLOCKS)):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
)";

constexpr const char* python_normalized = R"(

def normalized(images):
    if images.dim() == 3:
        images = images.unsqueeze(1)
    mean, std = (torch.tensor(x, device=images.device).view(-1, 1, 1) for x in (MEAN, STD))
    x = (images / 255 - mean) / std
    return x.transpose(1, 2) if x.dim() == 5 else x  # channels before frames


def predict(model, images):
    """The names of the likeliest classes."""
    with torch.no_grad():
        return [NAMES[i] for i in model(images).argmax(1).tolist()]


def load_model(path=None):
    """The model for evaluation. Its `classes` are the names of its outputs."""
    model = load(path)
    model.classes = NAMES
    return model
)";

// The network "cnn" in Python. That for clips has the same layers over time as well.
std::string python_cnn_of(const Plan& plan) {
  const auto pool = [&](std::int64_t frames) {
    return plan.frames > 0 ? c10::str("(", std::min<std::int64_t>(frames, 2), ", 2, 2)") : "2";
  };
  std::string layers = python_cnn;
  for (auto at = layers.find("2d"); plan.frames > 0 && at != std::string::npos; at = layers.find("2d"))
    layers[at] = '3';
  return c10::str("CHANNELS, FEATURES = ", plan.channels, ", ", features_of(plan),
                  "\nPOOL_1, POOL_2 = ", pool(plan.frames), ", ", pool(halved(plan.frames)), "\n", python_normalized,
                  layers);
}

}  // namespace

ImageNetwork::ImageNetwork(const Plan& plan, Recomputed recomputed) : recomputed_(std::move(recomputed)) {
  const auto mean = at::tensor(plan.mean, torch::kFloat64), std = at::tensor(plan.std, torch::kFloat64);
  factor_ = (1 / (std * 255)).to(torch::kFloat32).view({-1, 1, 1});
  shift_ = (mean / std).to(torch::kFloat32).view({-1, 1, 1});
}

torch::Tensor ImageNetwork::forward(const torch::Tensor& images) {
  if (factor_.device() != images.device()) {
    factor_ = factor_.to(images.device());
    shift_ = shift_.to(images.device());
  }
  const auto x = images.dim() == 3 ? images.unsqueeze(1) : images;
  return logits((x.to(torch::kFloat32) * factor_ - shift_).to(parameters().front().scalar_type()));
}

torch::Tensor ImageNetwork::part(const std::function<torch::Tensor(const torch::Tensor& x, bool is_again)>& body,
                                 const torch::Tensor& x) const {
  const auto is_again = std::make_shared<bool>(false);
  return recomputed_([body, is_again](const torch::Tensor& y) { return body(y, std::exchange(*is_again, true)); }, x);
}

std::shared_ptr<ImageNetwork> make_network(const Plan& plan, std::uint64_t seed, Recomputed recomputed) {
  if (plan.model != "cnn") return std::make_shared<ResNet>(plan, seed, std::move(recomputed));
  if (plan.frames > 0) return std::make_shared<Cnn<3>>(plan, seed, std::move(recomputed));
  return std::make_shared<Cnn<2>>(plan, seed, std::move(recomputed));
}

std::string python_source(const Plan& plan, const std::vector<std::string>& classes) {
  std::string source = python_head;
  source += c10::str("COLOURS, HEIGHT, WIDTH, CLASSES = ", plan.colours, ", ", plan.height, ", ", plan.width, ", ",
                     plan.classes, "\n");
  source += "NAMES = " + python_texts(classes) + "\n";
  source += "MEAN, STD = " + python_list(plan.mean) + ", " + python_list(plan.std) + "\n";
  if (plan.model == "cnn") {
    source += python_cnn_of(plan);
  } else {
    const auto stages = stages_of(plan);
    source += c10::str("CHANNELS, BLOCKS = ", stages.channels, ", ", python_list(stages.blocks), "\n");
    source += c10::str("WIDE_STEM = ", stages.has_wide_stem ? "True" : "False", "\n", python_normalized, python_resnet);
  }
  return source + python_load;
}
