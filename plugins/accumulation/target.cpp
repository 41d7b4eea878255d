// target: trains each update on several of the task's batches, either on a given number of samples or of batches.
//   target_effective_batch_size   required without the next: samples of an update, a multiple of the task's batch_size
//   gradient_accumulation_steps = 0   instead of it: the task's batches in an update, as other trainers count them
//   micro_batch_size = 0                the most samples of a micro-batch; 0: the task's batch_size
//   weight = "samples", weight_column = -1, padding = -100   see micro_batches.h
#include "micro_batches.h"

class TargetAccumulation final : public Gathering {
 public:
  explicit TargetAccumulation(vernier::Options& options)
      : Gathering(options),
        batches_(options.get("gradient_accumulation_steps", 0,
                             "instead of target_effective_batch_size: the task's batches in an update",
                             vernier::at_least(0))) {
    constexpr const char* key = "target_effective_batch_size";
    if (batches_ > 0 && options.given(key)) {
      options.refuse(key, "and `gradient_accumulation_steps` both say how large an update is; give one");
    }
    if (batches_ > 0) return;
    target_ = options.require<std::int64_t>(
        key, "samples of an update, a multiple of the task's batch_size; or give gradient_accumulation_steps",
        vernier::at_least(1));
    if (target_ > 0) refuse_larger_micro_batch(options, target_);  // 0: only described
  }

 private:
  std::int64_t update(std::int64_t, std::int64_t) const override {
    if (batches_ > 0) return batches_ * batch_;
    refuse_fraction("target_effective_batch_size", target_);
    return target_;
  }

  std::int64_t batches_, target_ = 0;
};

VERNIER_PLUGIN(TargetAccumulation, "target", "1.0.0")
