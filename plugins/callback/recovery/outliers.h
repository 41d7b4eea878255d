// How far loss and gradient norm are from their own course, computed where they are: the host does not wait.
#pragma once

#include <vernier/state.h>

#include <cstdint>

namespace recovery {

// z = (value - mean) / std over the last `window` values, this one not among them, std as torch.std has it
// (Bessel's correction). It judges from 20 values on, or half a window where that is more, as OLMo-core's
// SkipStepOptimizer; nothing before, and nothing where all values are the same.
class Outliers {
 public:
  explicit Outliers(std::int64_t window) : window_(window) {}
  void prepare(torch::Device device);
  // values: float64 [2]. Returns float64 [2], nan where it cannot judge.
  torch::Tensor z_scores(const torch::Tensor& values) const;
  // keep: a 0-dim bool. What was an outlier is not added: it would widen the course that it left.
  void add(const torch::Tensor& values, const torch::Tensor& keep);

  vernier::State save() const;
  void load(const vernier::State& state);

 private:
  std::int64_t window_;
  torch::Tensor values_;  // float64 [2, window], a ring
  torch::Tensor count_;   // int64, of all that were added
  torch::Tensor places_;  // 0, 1, …, window - 1
};

}  // namespace recovery
