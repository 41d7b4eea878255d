// For calls of a model that are no part of its training: trial runs, and exports that run forward().
#pragma once

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <vernier/random_state.h>

#include <utility>
#include <vector>

namespace vernier {

// At its end, buffers, frozen parameters and LibTorch's generators are what they were at its begin: forward() may count
// its calls in a buffer, and draw random numbers in evaluation too.
class Unchanged {
 public:
  explicit Unchanged(const torch::nn::Module& model) {
    const torch::NoGradGuard no_grad;
    const auto parameters = model.parameters();
    auto all = model.buffers();
    for (const auto& parameter : parameters) {
      if (!parameter.requires_grad()) all.push_back(parameter);
    }
    for (const auto& tensor : all) before_.emplace_back(tensor, tensor.clone());
    if (!parameters.empty()) device_ = parameters[0].device();
    random_.take(device_);
  }
  ~Unchanged() {
    const torch::NoGradGuard no_grad;
    for (auto& [tensor, before] : before_) {
      tensor.sizes() == before.sizes() ? void(tensor.copy_(before)) : tensor.set_data(before);
    }
    random_.restore(device_);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before_;
  torch::Device device_ = torch::kCPU;
  RandomState random_;
};

}  // namespace vernier
