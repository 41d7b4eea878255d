// fixed: splits each batch into the same number of micro-batches, whose sizes differ by one sample at most. Smaller
// micro-batches take less memory. The gradient stays that of the whole batch.
//   micro_batches = 1                 a batch of fewer samples (the tail of an epoch) is split into single samples
//   micro_batch_size = 0             instead: the most samples of a micro-batch
//   weight = "samples", weight_column = -1, padding = -100   see micro_batches.h
#include "micro_batches.h"

class FixedAccumulation final : public Weighing {
 public:
  explicit FixedAccumulation(vernier::Options& options)
      : Weighing(options),
        micro_batches_(
            options.get("micro_batches", 1, "in how many micro-batches a batch is trained", vernier::at_least(1))),
        micro_batch_size_(options.get("micro_batch_size", 0,
                                      "instead of micro_batches: the most samples of one; 0: micro_batches decides",
                                      vernier::at_least(0))) {
    remember("largest_batch", largest_);
    options.saves_memory("use", "fit",
                         "micro-batches as large as fit, measured in the first step; layers that look across samples "
                         "see a micro-batch");
    if (micro_batch_size_ > 0 && options.given("micro_batches"))
      options.refuse("micro_batch_size", "and `micro_batches` say the same; give one");
  }

  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    largest_ = std::max(largest_, batch.samples);
    refuse_more_than_a_batch("micro_batches", micro_batches_);
    refuse_more_than_a_batch("micro_batch_size", micro_batch_size_);
    return weighed(micro_batch_size_ > 0 ? at_most(batch, micro_batch_size_)
                                         : evenly(batch, std::min(micro_batches_, batch.samples)));
  }

  std::string memory_remedy() const override { return fit_finds_the_size; }

 private:
  void refuse_more_than_a_batch(const char* key, std::int64_t value) const {
    if (value <= largest_) return;
    vernier::refuse(c10::str(key, " = ", value, " is more than a batch has samples (", largest_, "); lower `", key,
                             "` or raise the task's batch_size"));
  }

  std::int64_t micro_batches_, micro_batch_size_;
  std::int64_t largest_ = 0;  // batch so far: a smaller one is the tail of an epoch
};

VERNIER_PLUGIN(FixedAccumulation, "fixed", "1.0.0")
