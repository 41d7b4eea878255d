// The role of several processes that train one model together.
#pragma once

#include <vernier/plugin.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

// Each process is a rank, and trains on its share of each batch. Prepared before the other roles; from then on all
// ranks call the same functions in the same order, on the main thread. Each function throws Error if a rank is lost,
// and names it: the run ends then. The defaults are those of one rank.
class VERNIER_API Distributed : public Plugin {
 public:
  static constexpr const char *role = "distributed", *standard = "none";
  ~Distributed() override;
  virtual std::int64_t rank() const;   // 0 to ranks() - 1; known from the constructor on
  virtual std::int64_t ranks() const;  // at least 1
  // Called after backward. Gradients of `model`, which each rank has weighted by its share, become their sums over all
  // ranks. An undefined gradient counts as zeros, and becomes defined. `numbers` become their sums too: float64, 1-D,
  // on the CPU.
  virtual void all_reduce(Run& run, torch::Tensor numbers);
  // Begins to replace `numbers`, float32 or float64 on the CPU or the run's device, by their sums, while the caller
  // goes on. The function that it returns waits for them.
  virtual std::function<void()> sum(torch::Tensor numbers);
  // of_ranks[r]: values of rank r, which replace those of the other ranks. Dense tensors of any dtype, on
  // the CPU or the run's device. Shapes and dtypes are the same on all ranks.
  virtual void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks);
  virtual std::vector<std::string> gather(const std::string& bytes);  // returns the bytes of each rank, by rank
  // True: each parameter has a rank that owns it. That rank alone updates it, and keeps its state and its master.
  virtual bool shards_optimizer() const;
};

}  // namespace vernier
