// The roles. One plugin fills each, `standard` if the TOML names none. Step::step calls it on the main thread.
#pragma once

#include <vernier/callback.h>
#include <vernier/distributed.h>
#include <vernier/task.h>

#include <optional>

namespace vernier {

// In which dtypes forward and backward run, and in which the optimizer's weights are.
class VERNIER_API Precision : public Plugin {
 public:
  static constexpr const char *role = "precision", *standard = "fp32";
  ~Precision() override;
  // After forward(): true if it computed in fewer bits than float32. Before the first: true if that is certain. The
  // trainer itself sees autocast in 16 bits, and weights of 16 bits; say it of anything else.
  virtual bool is_mixed() const;
  virtual bool has_float32() const;   // false: the optimizer updates weights in 16 bits
  virtual bool needs_scaler() const;  // true: without a loss scaler gradients leave the range of their dtype
  Contradiction contradicts(const Plugin& other, const Bus& bus) const override;
  virtual torch::Tensor forward(const std::function<torch::Tensor()>& body);  // runs body in this precision
  virtual void collect(Run& run);  // after backward: gradients of `model` into those of `master`, if they differ
  virtual void commit(Run& run);   // after the optimizer's step: `master` into `model`, if they differ
  // Called between steps before another precision replaces this one. Writes the most exact weights into `model`, by
  // set_data() in the task's dtypes, and makes `model` the master. Leaves this plugin as it is: it may stay.
  virtual void release(Run& run) const;
  virtual std::string describe() const;  // after prepare, one line for people: "bfloat16 autocast, …"
  virtual std::string emulated() const;  // after prepare: what this machine only emulates, "fp8"; "" if nothing
};

class VERNIER_API Scaler : public Plugin {  // keeps small gradients above the underflow of 16-bit floats
 public:
  static constexpr const char *role = "scaler", *standard = "none";
  ~Scaler() override;
  virtual bool scales() const;                             // false: leaves the loss as it is
  virtual torch::Tensor scale(const torch::Tensor& loss);  // called before backward
  virtual void unscale(Run& run);  // divides the gradients or sets run.grad_scale; sets run.found_inf, on the device
  virtual void update(Run& run);   // after the update, even a skipped one: chooses the scale of the next step
  // From prepare on: the scale of the next loss, and its growth tracker, for the statistics. 0-dim, on any device, and
  // perhaps the scaler's own tensors; undefined: there is none.
  struct Current {
    torch::Tensor scale, growth_tracker;
  };
  virtual Current current() const;
};

// Splits a batch into micro-batches, in order, without losing samples. All have a `weight` or none; 0 is left out.
class VERNIER_API Accumulation : public Plugin {
 public:
  static constexpr const char *role = "accumulation", *standard = "fixed";
  ~Accumulation() override;
  virtual std::vector<Batch> split(const Batch& batch) = 0;
  virtual bool gathers() const;  // true: an update has batches_per_update() batches, the last of an epoch what is left
  // At least 1. step: updates before it; epoch: 0 in the first; samples: in a whole batch. The trainer asks ahead to
  // plan run.steps. If the answer to the same question changes with what was trained, it plans anew after each update.
  virtual std::int64_t batches_per_update(std::int64_t step, std::int64_t epoch, std::int64_t samples);
  virtual bool can_shrink() const;  // true: the size of micro-batches may change at any time
  // Memory ran out. True: split() is finer now, and the batch of want_rerun() is computed again. False: the run ends.
  virtual bool shrink(Run& run);
};

// Changes the `master` tensors at its own rate times run.learning_rate_factor; nothing where run.skip_update is not 0.
class VERNIER_API Optimizer : public Plugin {
 public:
  static constexpr const char* role = "optimizer";
  ~Optimizer() override;
  virtual void step(Run& run) = 0;
  virtual bool divides_gradients() const;  // true: step() divides by run.grad_scale; else the trainer divides before
  virtual bool steps_in_backward() const;  // true: uses and frees each gradient in backward, so nobody sees them
  // True: a parameter changes by its own gradient and state alone. One without a gradient stays as it is, and step()
  // makes no state for it. load() leaves out the state of parameters that are not `owned`. Needed to shard the state.
  virtual bool updates_each_alone() const;
};

class VERNIER_API Checkpoint : public Plugin {  // keeps the run on disk
 public:
  static constexpr const char *role = "checkpoint", *standard = "rolling";
  ~Checkpoint() override;
  virtual bool due(const Run& run) = 0;  // called after each step
  // Writes all or nothing. Keeps no reference to the tensors; a copy may be written later, if RunEnd waits and throws.
  virtual void write(const State& snapshot, Run& run) = 0;
  // With several ranks, rank 0 alone calls write(). If Distributed::shards_optimizer(), each rank calls write_shard()
  // after the same step, with the entries that no lower rank has: one checkpoint together. The defaults refuse.
  virtual bool writes_shards() const;
  virtual void write_shard(const State& shard, Run& run);
  // The newest snapshot in the folder run.output, or the one at `from`; nothing if there is none. Throws if damaged.
  virtual std::optional<State> read(const Run& run, const std::string& from) = 0;
  // Returns what read() takes as `from`: each snapshot in a run's folder, whole or not, the newest first. Any time.
  // Default: all in `checkpoints` with a name like "step-100" or "step-100.one"; else `folder`, if read() finds one.
  virtual std::vector<std::string> snapshots(const std::string& folder);
};

}  // namespace vernier
