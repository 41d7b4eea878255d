// The rival: the training loop that a careful engineer writes by hand in LibTorch, with its fused AdamW.
#pragma once

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/types.h>

#include <functional>
#include <vector>

class PlainLoop {
 public:
  // micro_batches: calls of `loss` an update, as many batches whose mean is trained on.
  PlainLoop(std::vector<torch::Tensor> parameters, std::function<torch::Tensor()> loss, int micro_batches = 1)
      : parameters_(std::move(parameters)), loss_(std::move(loss)), micro_batches_(micro_batches) {
    for (const auto& parameter : parameters_) {
      mean_.push_back(torch::zeros_like(parameter));
      square_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat32));
    }
  }

  torch::Tensor step() {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    torch::Tensor loss;
    for (int i = 0; i < micro_batches_; ++i) {
      loss = micro_batches_ == 1 ? loss_() : loss_() / micro_batches_;
      loss.backward();
    }
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    gradients.reserve(parameters_.size());
    for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, mean_, square_, {}, steps_, /*lr=*/1e-3, 0.9, 0.999,
                      /*weight_decay=*/0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    return loss;
  }

 private:
  std::vector<torch::Tensor> parameters_, mean_, square_, steps_;
  std::function<torch::Tensor()> loss_;
  int micro_batches_;
};
