// PyTorch's torch.amp.GradScaler for C++: same names, same law (aten _amp_update_scale_).
//
//   vernier::GradScaler scaler(torch::kCUDA);
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);     // only where gradients are clipped or looked at
//   scaler.step(optimizer);
//   scaler.update();
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>
#include <vernier/optim.h>
#include <vernier/state.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace vernier {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   // after growth_interval steps in a row without inf or nan
  double backoff_factor = 0.5;  // after a step with one
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // false: every function does nothing or only calls the optimizer
};

// One thread. Unlike PyTorch's, takes float16 gradients too. Wrong order of calls throws Error, as PyTorch's
// RuntimeError.
class VERNIER_API GradScaler {
 public:
  // Throws Error where growth does not grow or backoff does not shrink.
  explicit GradScaler(torch::Device device, GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // The loss times the scale; call backward() on the result, outside autocast.
  torch::Tensor scale(const torch::Tensor& loss) const;

  // Divides the gradients by the scale, in place, and checks them. At most once an optimizer between two updates.
  void unscale_(const FusedOptimizer& optimizer);
  void unscale_(const torch::optim::Optimizer& optimizer);
  // The same for a plain list, as often as there are lists. Returns found_inf for the optimizer's step: float32 0-dim
  // on the device, 1 where an element is inf or nan, else 0; undefined where the scaler is not enabled.
  torch::Tensor unscale_(const std::vector<torch::Tensor>& gradients);

  // One step, unless there was an inf or nan; unscales where that was not done. Fused optimizers do both in their
  // kernel, and may leave the gradients scaled in memory; LibTorch's own cost a host sync.
  void step(FusedOptimizer& optimizer);
  void step(torch::optim::Optimizer& optimizer);

  // unscale_(), clip_grad_norm_() and step() in two passes: one reads the gradients, the optimizer's divides them. Float32
  // only. Returns the 2-norm before clipping, float32. Where it clips, the last bit may differ from PyTorch's.
  torch::Tensor clip_and_step(FusedOptimizer& optimizer, double max_norm);

  // After all steps of an iteration: the scale for the next one, from the checks since the last update; or sets it.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const;                 // host sync; 1 where the scaler is not enabled
  std::int64_t get_growth_tracker() const;  // steps in a row without inf or nan; host sync
  const torch::Tensor& scale_tensor() const { return scale_; }
  const GradScalerOptions& options() const { return options_; }
  bool is_enabled() const { return options_.enabled; }

  // Scale, factors, interval and tracker under PyTorch's names; host sync. Empty where the scaler is not enabled.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    torch::Tensor found_inf;
  };
  void unscale_once(const void* optimizer, const std::vector<torch::Tensor>& gradients);
  torch::Tensor recorded() const;

  GradScalerOptions options_;
  torch::Tensor scale_, growth_tracker_;
  std::map<const void*, PerOptimizer> optimizers_;
  std::vector<torch::Tensor> found_;  // of plain lists since the last update
};

// For scalers with a law of their own: divides gradients of any dtypes, in place, by a scale (float32 0-dim) and
// returns found_inf as GradScaler::unscale_ does. The bits are PyTorch's: the check is before the division, that is a
// multiplication by the reciprocal. No host sync on a GPU.
VERNIER_API torch::Tensor unscale_gradients_(const std::vector<torch::Tensor>& gradients, const torch::Tensor& scale);

}  // namespace vernier
