// What every plugin can see of a training run. Owned by the runner, changed on the main thread only.
#pragma once

#include <torch/nn/module.h>
#include <vernier/amp_stats.h>
#include <vernier/batch.h>
#include <vernier/control.h>
#include <vernier/metrics.h>
#include <vernier/parameter.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace vernier {

struct VERNIER_API Run {
  // Valid from Plugin::prepare on.
  std::string name;
  std::string output;  // folder of this run's files; final, and there, from RunBegin on
  torch::Device device{torch::kCPU};
  bool learns_late = false;  // the host waits for no number of a step: it knows a step later. On a GPU; in tests elsewhere
  std::uint64_t seed = 1;
  std::int64_t steps = 0;                    // updates planned
  std::shared_ptr<torch::nn::Module> model;  // set by Task::prepare
  std::vector<Parameter> parameters;         // `owned` is final after Precision::prepare, until another takes over
  std::string emulated;  // after Precision::prepare: what this machine only imitates ("fp8"); stands where speeds are shown

  // Counters; resumed. In the step, `step` counts the updates finished before it: 0 in the first.
  std::int64_t step = 0;
  std::int64_t updates = 0;  // of them applied, not skipped; known one step late where the host learns late
  AmpStats amp;              // of this step too from StepEnd on, its overflow when `updates` knows; no times or memory
  std::int64_t epoch = 0, samples = 0, tokens = 0;  // epoch: 0 in the first
  std::int64_t drawn = 0;  // batches taken from the task before this step, those too that a rewind passed over

  // This step.
  Batch batch;              // from BatchReady: the whole batch of the update, on the host
  std::int64_t batches = 1;  // from BatchReady: of the task in `batch`
  Batch piece;              // from BatchReady: the part in work, on the device
  torch::Tensor piece_loss;  // at LossReady: the piece's mean, differentiable; a callback may put another in its place
  torch::Tensor loss;        // from GradientsReady: mean over the batch, on the device, float32
  torch::Tensor found_inf;  // from GradientsReady: float32 0-dim, not 0 where the update is skipped; undefined: not checked
  torch::Tensor overflow;   // from GradientsReady: found_inf as the scaler found it, before any listener's veto
  mutable torch::Tensor grad_scale;   // from GradientsReady to the optimizer: see gradients(); float32 0-dim or undefined
  mutable torch::Tensor scaled_norm;  // their 2-norm before that division, float64 0-dim; undefined: not known
  torch::Tensor scaled_norms;         // as the scaler found them, of each that is not empty; undefined: not known
  double learning_rate_factor = 1.0;  // 1 at StepBegin; callbacks multiply theirs in until GradientsReady
  Metrics metrics;                    // of this step; validation's are valid at Validated
  std::vector<Notice> notices;        // complete for monitors at StepEnd, and at RunEnd for the last ones

  // Runs the pieces of this batch once more, leaves new gradients and returns the loss: for optimizers that ask for more
  // than one an update. Valid inside Optimizer::step, and in listeners of GradientsReady.
  std::function<torch::Tensor()> recompute;
  // At Validating: the validation that follows, as Task::validate; a callback may put one of its own around it.
  std::function<torch::Tensor()> validate;

  Control control;  // what a plugin may ask for: other plugins, going back, the end
  // True once a signal asks the run to end: what takes long (Task::validate) returns early, and is done again later.
  bool is_stopping() const { return stop != nullptr && *stop != 0; }

  void notice(const char* name, std::vector<std::pair<std::string, Notice::Detail>> details = {});

  // Until the optimizer's step: the gradients that it will use, in the order of `parameters`; those without one left out.
  // Where grad_scale is defined they are still that many times as large in memory: divides them, so get them here alone.
  std::vector<torch::Tensor> gradients() const;
  std::vector<std::string> non_finite_gradients() const;  // names of the parameters that have one; a host sync

  // For the trainer.
  const std::atomic<int>* stop = nullptr;
  double share() const;                                   // of this piece in the batch, by weight or samples
  void take(const Batch& next);                           // makes it the piece in work, on the device
  void add_loss(const torch::Tensor& loss);               // adds its share to `loss`
  torch::Tensor weigh(const torch::Tensor& loss) const;  // times share(), to be differentiated
};

}  // namespace vernier
