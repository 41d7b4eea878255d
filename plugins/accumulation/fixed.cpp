// fixed: each batch in the same number of pieces, of sizes that differ by one sample at most. Memory falls with the
// size of a piece; the gradient stays that of the whole batch.
//   pieces = 1   a batch of fewer samples (the tail of an epoch) is split into single samples
#include <vernier/sdk.h>

class FixedAccumulation final : public vernier::Accumulation {
 public:
  explicit FixedAccumulation(vernier::Options& options)
      : pieces_(options.get("pieces", 1, "in how many pieces a batch is trained", vernier::at_least(1))) {}

  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    largest_ = std::max(largest_, batch.samples);
    if (largest_ < pieces_) {
      throw vernier::Error(c10::str("pieces = ", pieces_, " is more than a batch has samples (", batch.samples,
                                    "); lower `pieces` or raise the task's batch_size"),
                           vernier::Error::Kind::configuration);
    }
    const auto count = std::min(pieces_, batch.samples);
    if (count == 1) return {batch};
    std::vector<vernier::Batch> pieces;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto first = batch.samples * i / count;
      pieces.push_back(batch.narrow(first, batch.samples * (i + 1) / count - first));
    }
    return pieces;
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("largest_batch", largest_);
    return state;
  }
  void load(const vernier::State& state) override { largest_ = state.integer("largest_batch"); }

 private:
  std::int64_t pieces_;
  std::int64_t largest_ = 0;  // batch so far: a smaller one is the tail of an epoch
};

VERNIER_PLUGIN(FixedAccumulation, "fixed", "1.0.0")
