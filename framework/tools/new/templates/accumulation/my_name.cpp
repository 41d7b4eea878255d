// my_name: trains each batch in two halves, one after the other.
// That takes about half the memory. The gradient stays that of the whole batch. The progress line shows the number of
// micro-batches.
//   smallest = 2   a batch of fewer samples stays whole
//
// This file is a complete plugin. Replace its rule with your own.
#include <vernier/sdk.h>

class MyName final : public vernier::Accumulation {
 public:
  // Reads the options and does nothing else. `vernier plugins accumulation/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : smallest_(options.get("smallest", 2, "a batch of fewer samples stays whole", vernier::at_least(2))) {}

  // Called in every step with the whole batch, on the CPU. The micro-batches keep the order of the samples and leave
  // none out. The trainer weighs the loss of each by its samples, or by Batch::weight if all have one.
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    if (batch.samples < smallest_) return {batch};
    const auto half = batch.samples / 2;
    return {batch.narrow(0, half), batch.narrow(half, batch.samples - half)};
  }

 private:
  std::int64_t smallest_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
