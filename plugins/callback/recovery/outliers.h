// z-scores of loss and gradient norm over their last values, computed on their device: the host does not wait.
#pragma once

#include <vernier/state.h>

#include <cstdint>

namespace recovery {

// z = (value - mean) / std over the last `window` values, without the value itself; std as torch.std (Bessel's
// correction). There is a z-score from 20 values on, or from half a window where that is more, as in OLMo-core's
// SkipStepOptimizer. There is none before that, and none where all values are the same.
class Outliers {
 public:
  explicit Outliers(std::int64_t window) : window_(window) {}
  void prepare(torch::Device device);
  // values: float64 [2]. Returns float64 [2], nan if there is no z-score.
  torch::Tensor z_scores(const torch::Tensor& values) const;
  torch::Tensor means() const;  // float64 [2]: of the window
  // keep: a 0-dim bool, false for an outlier: it would raise the deviation that it is measured by.
  void add(const torch::Tensor& values, const torch::Tensor& keep);

  vernier::State save() const { return {{"values", values_}, {"count", count_}}; }
  void load(const vernier::State& state);

 private:
  std::int64_t window_;
  torch::Tensor values_;  // float64 [2, window], a ring
  torch::Tensor count_;   // int64, how many were added
  torch::Tensor places_;  // 0, 1, …, window - 1
};

}  // namespace recovery
