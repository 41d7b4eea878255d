// fixed: each batch in the same number of pieces, of sizes that differ by one sample at most. Memory falls with the
// size of a piece; the gradient stays that of the whole batch.
//   pieces = 1                 a batch of fewer samples (the tail of an epoch) is split into single samples
//   piece_size = 0             instead: the most samples of a piece
//   weight = "samples"         or "tokens", see pieces.h
//   weight_column = -1, padding = -100
#include "pieces.h"

class FixedAccumulation final : public vernier::Accumulation {
 public:
  explicit FixedAccumulation(vernier::Options& options)
      : pieces_(options.get("pieces", 1, "in how many pieces a batch is trained", vernier::at_least(1))),
        piece_size_(options.get("piece_size", 0, "instead of pieces: the most samples of one; 0: pieces says it",
                                vernier::at_least(0))),
        weight_(options) {
    if (piece_size_ > 0 && options.given("pieces")) options.refuse("piece_size", "and `pieces` say the same; give one");
  }

  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    largest_ = std::max(largest_, batch.samples);
    refuse_more_than_a_batch("pieces", pieces_);
    refuse_more_than_a_batch("piece_size", piece_size_);
    return weight_.weighed(piece_size_ > 0 ? at_most(batch, piece_size_)
                                           : evenly(batch, std::min(pieces_, batch.samples)));
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("largest_batch", largest_);
    return state;
  }
  void load(const vernier::State& state) override { largest_ = state.integer("largest_batch"); }

 private:
  void refuse_more_than_a_batch(const char* key, std::int64_t value) const {
    if (value <= largest_) return;
    throw vernier::Error(c10::str(key, " = ", value, " is more than a batch has samples (", largest_, "); lower `", key,
                                  "` or raise the task's batch_size"),
                         vernier::Error::Kind::configuration);
  }

  std::int64_t pieces_, piece_size_;
  Weight weight_;
  std::int64_t largest_ = 0;  // batch so far: a smaller one is the tail of an epoch
};

VERNIER_PLUGIN(FixedAccumulation, "fixed", "1.0.0")
