// schedule: grows or shrinks the batch of an update during a run. Each update takes several of the task's
// batches. Small updates make the quickest progress in the beginning, large ones the steadiest later.
//   effective_batch_size   required: samples of an update, a list, multiples of the task's batch_size: [32, 64, 128]
//   from = [0]             the steps or epochs from which on each holds: [0, 1000, 4000]
//   by = "steps"           or "epochs"
//   micro_batch_size = 0         the most samples of a micro-batch; 0: the task's batch_size
//   weight = "samples", weight_column = -1, padding = -100   see micro_batches.h
// Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018.
#include <algorithm>
#include <functional>

#include "micro_batches.h"

class ScheduleAccumulation final : public Gathering {
 public:
  explicit ScheduleAccumulation(vernier::Options& options)
      : Gathering(options),
        sizes_(options.require<std::vector<std::int64_t>>(
            "effective_batch_size", "samples of an update, one number for each of `from`", vernier::at_least(1))),
        from_(options.get("from", std::vector<std::int64_t>{0}, "steps or epochs from which on each holds, the first 0",
                          vernier::at_least(0))),
        by_epochs_(options.choose("by", "steps", {"steps", "epochs"}, "what `from` counts") == "epochs") {
    if (sizes_.empty()) return;  // only described
    if (sizes_.size() != from_.size()) {
      options.refuse("from", c10::str("has ", from_.size(), " numbers and effective_batch_size ", sizes_.size(),
                                      ": give one for each"));
    }
    if (from_.front() != 0 || std::ranges::adjacent_find(from_, std::greater_equal<>()) != from_.end()) {
      options.refuse("from", "must begin with 0 and grow");
    }
    refuse_larger_micro_batch(options, std::ranges::max(sizes_));
  }

 private:
  std::int64_t update(std::int64_t step, std::int64_t epoch) const override {
    for (const auto size : sizes_) refuse_fraction("effective_batch_size", size);  // all, before the first step
    const auto next = std::ranges::upper_bound(from_, by_epochs_ ? epoch : step);
    return sizes_[static_cast<std::size_t>(next - from_.begin() - 1)];
  }

  std::vector<std::int64_t> sizes_, from_;
  bool by_epochs_;
};

VERNIER_PLUGIN(ScheduleAccumulation, "schedule", "1.0.0")
