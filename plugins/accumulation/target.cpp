// target: trains each update on a given number of samples, which are several of the task's batches. The number of
// micro-batches follows from it.
//   target_effective_batch_size   required: samples of an update, a multiple of the task's batch_size
//   micro_batch_size = 0                the most samples of a micro-batch; 0: the task's batch_size
//   weight = "samples", weight_column = -1, padding = -100   see micro_batches.h
#include "micro_batches.h"

class TargetAccumulation final : public Gathering {
 public:
  explicit TargetAccumulation(vernier::Options& options)
      : Gathering(options),
        target_(options.require<std::int64_t>("target_effective_batch_size",
                                              "samples of an update, a multiple of the task's batch_size",
                                              vernier::at_least(1))) {
    if (target_ > 0) refuse_larger_micro_batch(options, target_);  // 0: only described
  }

 private:
  std::int64_t update(std::int64_t, std::int64_t) const override {
    refuse_fraction("target_effective_batch_size", target_);
    return target_;
  }

  std::int64_t target_;
};

VERNIER_PLUGIN(TargetAccumulation, "target", "1.0.0")
