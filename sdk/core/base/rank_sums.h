// Sums over ranks inside of a step's loss, which the trainer lends to gather_over_ranks().
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>

namespace vernier {

// While one exists, the micro-batches of a step are computed on several ranks. sum: replaces numbers, float32 or
// float64, by their sums. Backward calls it on a thread of its own if the run is on a GPU.
class VERNIER_API RankSums {
 public:
  RankSums(std::int64_t rank, std::int64_t ranks, std::function<void(const torch::Tensor&)> sum);
  ~RankSums();
  const std::int64_t rank, ranks;
  const std::function<void(const torch::Tensor&)> sum;
};

// For the trainer: throws Error, on every rank that gathers. parts: the micro-batches of this rank.
[[noreturn]] VERNIER_API void refuse_unequal_parts(std::int64_t parts);

// The number of calls of gather_over_ranks() that returned the tensors of this rank alone. Main thread.
VERNIER_API std::int64_t lone_gathers();

}  // namespace vernier
