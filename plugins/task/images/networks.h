// The networks of task/images.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct Plan {
  std::string model = "cnn";  // "cnn", "resnet18", "resnet34", "resnet"
  std::int64_t channels = 16;
  std::vector<std::int64_t> blocks;  // of "resnet"
  std::string stem = "auto";         // "auto", "7x7", "3x3"
  std::int64_t colours = 1, height = 0, width = 0, classes = 0;
  std::vector<double> mean, std;  // of each channel, of pixels from 0 to 1
};

class ImageNetwork : public torch::nn::Module {
 public:
  explicit ImageNetwork(const Plan& plan);
  // Logits [samples, classes] of uint8 images [samples, channels, height, width] or [samples, height, width].
  torch::Tensor forward(const torch::Tensor& images);

 protected:
  virtual torch::Tensor logits(torch::Tensor x) = 0;  // of normalized images

 private:
  torch::Tensor factor_, shift_;  // no buffers: init_from takes files of other programs, which lack them
};

// Its weights depend on the plan and the seed alone. "cnn" needs 4 x 4 pixels at least.
std::shared_ptr<ImageNetwork> make_network(const Plan& plan, std::uint64_t seed);

// The same in PyTorch, with the same names.
std::string python_source(const Plan& plan, const std::vector<std::string>& classes);
