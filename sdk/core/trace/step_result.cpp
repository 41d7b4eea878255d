#include <vernier/step_result.h>

#include <torch/nn/module.h>

namespace vernier {

struct StepResult::Kept {
  StepState step;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> gradients;  // gradients of `model` and `master`
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;    // live, and the copy
};

StepResult::StepResult() = default;
StepResult::~StepResult() = default;

void StepResult::take(const Run& run) {
  const torch::NoGradGuard no_grad;
  kept_ = std::make_unique<Kept>();
  kept_->step = run;
  for (const auto& parameter : run.parameters) {
    kept_->gradients.emplace_back(parameter.model.grad(), parameter.master.grad());
  }
  for (const auto& buffer : run.model->buffers()) kept_->buffers.emplace_back(buffer, buffer.detach().clone());
}

void StepResult::put(Run& run) const {
  const torch::NoGradGuard no_grad;
  const auto& step = kept_->step;
  run.batch = step.batch;
  run.micro_batches = step.micro_batches;
  run.loss = step.loss;
  run.found_inf = step.found_inf;
  run.skip_update = step.skip_update;
  run.grad_scale = step.grad_scale;
  run.norms = step.norms;
  for (std::size_t i = 0; i < kept_->gradients.size(); ++i) {
    run.parameters[i].model.mutable_grad() = kept_->gradients[i].first;
    run.parameters[i].master.mutable_grad() = kept_->gradients[i].second;
  }
  for (const auto& [live, copy] : kept_->buffers) live.copy_(copy);
}

void StepResult::clear() {
  kept_.reset();
}

}  // namespace vernier
