// The roles as the trainer calls them: each call is noted, for the text of an error, and each answer is checked.
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <functional>
#include <vector>

#include "calls.h"
#include "ranks.h"

namespace vernier {

// All functions throw Error, with a remedy, for an answer that cannot be used. Role::operator-> calls without a check.
class CheckedTask : public Role<Task> {
 public:
  using Role::Role;
  Batch next() const;
  std::int64_t batches_per_epoch() const;
  void weigh(std::vector<Batch>& micro_batches) const;             // sets weights that the accumulation left open
  torch::Tensor loss(const TrainerRun& run) const;                 // the loss of run.micro_batch
  void backward(const torch::Tensor& loss, const Run& run) const;  // an error in the graph is the task's, which made it
};

class CheckedPrecision : public Role<Precision> {
 public:
  using Role::Role;
  // Runs body, which returns a loss, in the run's precision. Errors after body are the precision's.
  torch::Tensor forward(const std::function<torch::Tensor()>& body) const;
  // The same in a step, where the loss must have a graph.
  torch::Tensor forward(const TrainerRun& run, const std::function<torch::Tensor()>& body) const;
  // Called after forward() in a step, and not in a rerun. Returns whether it computed in fewer bits than float32.
  bool keep_dtype() const;
  void collect(TrainerRun& run) const;
  void commit(TrainerRun& run) const;
  // The dtype in which the last step multiplied, by autocast or by its weights; nothing before the plugin's first step.
  std::optional<c10::ScalarType> dtype() const { return seen_ == get() ? std::optional(dtype_) : std::nullopt; }

 private:
  mutable const Precision* seen_ = nullptr;
  mutable c10::ScalarType dtype_ = c10::kFloat, forward_dtype_ = c10::kFloat;
};

class CheckedScaler : public Role<Scaler> {
 public:
  using Role::Role;
  torch::Tensor scale(const torch::Tensor& loss, c10::Device device) const;
  void unscale(TrainerRun& run) const;
  void update(TrainerRun& run) const;
  Scaler::Current current() const;
};

class CheckedAccumulation : public Role<Accumulation> {
 public:
  using Role::Role;
  std::vector<Batch> split(const TrainerRun& run) const;  // splits run.batch; a rank without samples gets none
  std::int64_t batches_per_update(std::int64_t step, std::int64_t epoch, std::int64_t samples) const;
  void check_weight(const WholeBatch& whole) const;
};

class CheckedOptimizer : public Role<Optimizer> {
 public:
  using Role::Role;
  void step(TrainerRun& run) const;  // leaves parameters of other ranks alone
};

// The plugins of a run as the trainer calls them. Main thread only.
struct Roles {
  explicit Roles(Wiring& all) : wiring(all) {}
  // Throw Error before anything is updated, in the name of the plugin that may have made a wrong gradient.
  void check_backward(const TrainerRun& run);                // all micro-batches are computed
  void check_gradients(const TrainerRun& run, Event event);  // the listeners of the event were called

  Wiring& wiring;
  Calls calls{wiring};
  CheckedTask task{wiring.task, calls};
  CheckedPrecision precision{wiring.precision, calls};
  CheckedScaler scaler{wiring.scaler, calls};
  CheckedAccumulation accumulation{wiring.accumulation, calls};
  CheckedOptimizer optimizer{wiring.optimizer, calls};
  Role<Checkpoint> checkpoint{wiring.checkpoint, calls};
  Ranks ranks{wiring.distributed, calls};
  Owners owners{wiring.distributed, calls};
};

}  // namespace vernier
