// The networks of task/images.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct Plan {
  std::string model = "cnn";  // "cnn", "resnet18", "resnet34", "resnet"
  std::int64_t channels = 16;
  std::vector<std::int64_t> blocks;  // blocks of "resnet"
  std::string stem = "auto";         // "auto", "7x7", "3x3"
  std::int64_t frames = 0;           // frames of a clip; 0: images
  std::int64_t colours = 1, height = 0, width = 0, classes = 0;
  std::vector<double> mean, std;  // statistics of each channel, for pixels from 0 to 1
};

// Calls a part of the network, perhaps once more in backward: SupervisedTask::recomputed().
using Part = std::function<torch::Tensor(const torch::Tensor&)>;
using Recomputed = std::function<torch::Tensor(const Part& part, const torch::Tensor& x)>;

class ImageNetwork : public torch::nn::Module {
 public:
  ImageNetwork(const Plan& plan, Recomputed recomputed);
  // Logits [samples, classes] of uint8 images [samples, channels, height, width] or [samples, height, width], or of
  // clips [samples, frames, channels, height, width].
  torch::Tensor forward(const torch::Tensor& images);

 protected:
  virtual torch::Tensor logits(torch::Tensor x) = 0;  // images: normalized
  // Calls a part of logits(). is_again: backward computes it once more, and has counted its batch already.
  torch::Tensor part(const std::function<torch::Tensor(const torch::Tensor& x, bool is_again)>& body,
                     const torch::Tensor& x) const;

 private:
  Recomputed recomputed_;
  torch::Tensor factor_, shift_;  // no buffers: init_from takes files of other programs, which lack them
};

// Its weights depend on the plan and the seed alone. "cnn" needs 4 x 4 pixels at least, and is the one for clips.
std::shared_ptr<ImageNetwork> make_network(const Plan& plan, std::uint64_t seed, Recomputed recomputed);

// The same in PyTorch, with the same names.
std::string python_source(const Plan& plan, const std::vector<std::string>& classes);
