// The roles: what the training step calls by name. One plugin fills each; callbacks and monitors there may be many.
// Every function is called by the trainer, on the main thread, in the order of the step (framework/trainer.cpp).
#pragma once

#include <vernier/plugin.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace vernier {

// Model, data, loss, evaluation. prepare() sets run.model, on the CPU, initialised from run.seed.
class VERNIER_API Task : public Plugin {
 public:
  static constexpr const char* role = "task";
  ~Task() override;
  virtual Batch next() = 0;                              // the whole batch of the next update, on the CPU
  virtual std::int64_t batches_per_epoch() const = 0;    // calls of next() until the data start anew, at least 1
  virtual torch::Tensor loss(const Batch& piece) = 0;    // 0-dim: the mean over the piece's samples, differentiable
  // Mean loss over held-out data, 0-dim, without gradient; undefined where there are none. The model is in evaluation
  // mode. More numbers go into run.metrics. Leaves the random state alone; ends early where run.is_stopping().
  virtual torch::Tensor validate(Run& run);
};

// In which dtypes forward and backward run, and where the optimizer's weights live.
class VERNIER_API Precision : public Plugin {
 public:
  static constexpr const char* role = "precision";
  ~Precision() override;
  virtual bool needs_scaler() const;  // true: gradients leave the range of their dtype without a loss scaler
  virtual torch::Tensor forward(const std::function<torch::Tensor()>& body);  // runs body in this precision
  virtual void collect(Run& run);     // gradients of `model` into those of `owned`, where they differ
  virtual void commit(Run& run);      // `owned` into `model`, where they differ
  // Before another takes over, between steps, where `owned` has not the best values: these into `model` in the task's
  // dtypes, by set_data(), and `model` into `owned`. Changes no more: it goes on where the other is refused.
  virtual void release(Run& run) const;
  virtual std::string describe() const;  // what it does and what to expect, after prepare: "bfloat16 autocast, …"
};

// Keeps small gradients above the underflow of 16-bit floats.
class VERNIER_API Scaler : public Plugin {
 public:
  static constexpr const char* role = "scaler";
  ~Scaler() override;
  virtual bool scales() const;                            // false: the loss is left as it is
  virtual torch::Tensor scale(const torch::Tensor& loss); // before backward
  virtual void unscale(Run& run);  // gradients of `owned`, or sets run.grad_scale; sets run.found_inf, on the device
  virtual void update(Run& run);                          // the scale for the next step
};

// What an update trains on, and in how many pieces. The pieces are in order and add up to the batch; where one has a
// `weight`, all have, and those of weight 0 are passed over.
class VERNIER_API Accumulation : public Plugin {
 public:
  static constexpr const char* role = "accumulation";
  ~Accumulation() override;
  virtual std::vector<Batch> split(const Batch& batch) = 0;

  // True: updates are made of several of the task's batches, as many as batches() says. The last update of an epoch
  // takes what is left of it.
  virtual bool gathers() const;
  // step: updates before it; epoch: 0 in the first; samples: in a whole batch of the task. Nothing else decides, for the
  // trainer asks ahead, to learn how many updates some epochs are.
  virtual std::int64_t batches(std::int64_t step, std::int64_t epoch, std::int64_t samples);

  // A piece found no memory. True: split() gives smaller ones now, and the whole batch is computed anew, from the same
  // state, which run.control.keep_for_repeat has kept. False: the run ends.
  virtual bool split_finer(Run& run);
};

// Changes the `owned` tensors at its option's rate times run.learning_rate_factor; nothing where run.found_inf is not 0.
class VERNIER_API Optimizer : public Plugin {
 public:
  static constexpr const char* role = "optimizer";
  ~Optimizer() override;
  virtual void step(Run& run) = 0;
  virtual bool divides_gradients() const;  // true: step() divides by run.grad_scale; else it is done before
  virtual bool steps_in_backward() const;  // true: gradients are used and freed in backward, and nobody sees them
};

class VERNIER_API Checkpoint : public Plugin {  // keeps the run on disk
 public:
  static constexpr const char* role = "checkpoint";
  ~Checkpoint() override;
  virtual bool due(const Run& run) = 0;  // asked after each step
  // Whole or not at all. Keeps no reference to the tensors; a copy may be written later, if RunEnd waits and throws.
  virtual void write(const State& snapshot, Run& run) = 0;
  // The newest snapshot in the run's folder; nothing where it has none. Or that at `from`, where it is not empty.
  virtual std::optional<State> read(const Run& run, const std::string& from) = 0;
};

class VERNIER_API Distributed : public Plugin {  // several processes that train one model
 public:
  static constexpr const char* role = "distributed";
  ~Distributed() override;
  virtual void reduce(Run& run);  // gradients of `model` become their mean over all ranks
  virtual std::int64_t least(std::int64_t value) const;  // of all ranks' values; each rank asks at the same moment
};

class VERNIER_API Callback : public Plugin {  // may change the run: clipping, schedules, averages, recovery
 public:
  static constexpr const char* role = "callback";
  ~Callback() override;
};

// May only look: its listeners take `const Run&`. One that throws is detached, and the training goes on.
class VERNIER_API Monitor : public Plugin {
 public:
  static constexpr const char* role = "monitor";
  ~Monitor() override;
};
}  // namespace vernier
