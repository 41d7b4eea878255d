// The role of what is trained: model, data, loss and validation.
#pragma once

#include <vernier/plugin.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

// Model, data, loss, validation. prepare() calls run.set_model: on the CPU, initialised from run.seed.
class VERNIER_API Task : public Plugin {
 public:
  static constexpr const char* role = "task";
  ~Task() override;
  virtual Batch next() = 0;                                  // the next whole batch, on the CPU
  virtual std::int64_t batches_per_epoch() const = 0;        // calls of next() in an epoch, at least 1
  virtual torch::Tensor loss(const Batch& micro_batch) = 0;  // 0-dim: mean over the samples, differentiable
  // Returns what loss() of this part of a batch, on the host, is a mean over, if not samples: of texts, the tokens
  // that are learned; 0: the part is left out. The loss of an update is then one mean over all of them, however it is
  // split. A task that weighs gives a number for an empty batch too.
  virtual std::optional<double> weight_of(const Batch& part) const;
  // Says where a sample of Batch::indices comes from: "'train.csv' line 17". Default: "sample 17". Any thread may ask.
  virtual std::string where(std::int64_t index) const;
  virtual Batch concatenated(const std::vector<Batch>& batches) const;  // for gathers(); default: Batch::concatenated
  // Mean loss over held-out data, 0-dim, without gradient; undefined if there are none. The model is in evaluation
  // mode. Other numbers go into run.metrics. Leaves the random state alone; returns early if run.is_stopping().
  virtual torch::Tensor validate(Run& run);
  // Loss of one batch, which is on the device, as validate() has it of all held-out data. Default: loss() of it alone.
  virtual torch::Tensor validate_batch(Run& run, const Batch& batch);
  // After prepare: all that validations measure, "validation_loss" too. Empty: nothing held out; none: not known yet.
  virtual std::optional<std::vector<MetricInfo>> measures() const;
};

}  // namespace vernier
