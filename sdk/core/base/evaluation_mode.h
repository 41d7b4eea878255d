// A model in evaluation mode for a while.
#pragma once

#include <torch/nn/module.h>
#include <vernier/random_state.h>

#include <memory>
#include <utility>
#include <vector>

namespace vernier {

// Sets the mode, until this ends. Modules that a task keeps in that mode (frozen ones) stay so, and random numbers that
// are drawn meanwhile are given back.
class EvaluationMode {
 public:
  EvaluationMode(torch::nn::Module& model, const torch::Device& device) : device_(device) {
    for (auto& module : model.modules()) modes_.emplace_back(module, module->is_training());
    random_.take(device_);
    model.eval();
  }
  ~EvaluationMode() {
    random_.restore(device_);
    for (auto& [module, is_training] : modes_) module->train(is_training);  // parents come first
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::Device device_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  RandomState random_;
};

}  // namespace vernier
