// PyTorch's torch.amp.GradScaler for C++: the same names and the same rule (ATen's _amp_update_scale_).
//
//   vernier::GradScaler scaler(torch::kCUDA);
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);     // only if gradients are clipped or inspected
//   scaler.step(optimizer);
//   scaler.update();
#pragma once

#include <vernier/abi.h>
#include <vernier/optim.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

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
  double growth_factor = 2.0;   // after growth_interval steps in a row without inf or NaN
  double backoff_factor = 0.5;  // after a step with inf or NaN
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // false: the functions do nothing or only call the optimizer
};

// Use it on one thread. Unlike PyTorch's, it also accepts float16 gradients. Calls in a wrong order throw Error, where
// PyTorch raises RuntimeError.
class VERNIER_API GradScaler {
 public:
  // Throws Error unless growth_factor > 1 and backoff_factor < 1.
  explicit GradScaler(torch::Device device, GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // Returns the loss times the scale. Call backward() on the result, outside autocast.
  torch::Tensor scale(const torch::Tensor& loss) const;

  // Divides the optimizer's gradients by the scale in place and checks them for inf and NaN. Call it at most once for
  // each optimizer between two update(). Returns found_inf: float32 0-dim on the scaler's device, 1 if any element is
  // inf or NaN, so that step() will skip the optimizer, else 0. It is undefined if not enabled, or without gradients.
  torch::Tensor unscale_(const FusedOptimizer& optimizer);
  torch::Tensor unscale_(const torch::optim::Optimizer& optimizer);
  // The same for a plain list of gradients; 0 for an empty one. Call it once for each list.
  torch::Tensor unscale_(const std::vector<torch::Tensor>& gradients);

  // Steps the optimizer, unless its gradients had inf or NaN. Unscales them first if unscale_() was not called. Returns
  // found_inf as unscale_() does: 1 if the optimizer was skipped. A FusedOptimizer unscales and skips within its
  // kernel, and may leave the gradients scaled in memory. LibTorch's own optimizers cost a host sync.
  torch::Tensor step(FusedOptimizer& optimizer);
  torch::Tensor step(torch::optim::Optimizer& optimizer);

  // Does unscale_(), clip_grad_norm_() and step() in two passes: one reads the gradients, the optimizer's divides them.
  // Throws Error unless all gradients are float32. Returns the 2-norm before clipping, float32 0-dim. If it clips, the
  // last bit may differ from PyTorch's.
  torch::Tensor clip_and_step(FusedOptimizer& optimizer, double max_norm);

  // Call it after all steps of an iteration. Computes the next scale from the checks since the last update(), or sets
  // it to new_scale.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const;                 // host sync; 1 if not enabled
  std::int64_t get_growth_tracker() const;  // steps in a row without inf or NaN; host sync
  const torch::Tensor& scale_tensor() const { return scale_; }
  const GradScalerOptions& options() const { return options_; }
  bool is_enabled() const { return options_.enabled; }

  // Scale, factors, interval and tracker under PyTorch's names. Costs a host sync. Empty if not enabled.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    torch::Tensor found_inf;
  };
  torch::Tensor unscale_once(const void* optimizer, const std::vector<torch::Tensor>& gradients);
  torch::Tensor recorded() const;

  GradScalerOptions options_;
  torch::Tensor scale_, growth_tracker_;
  std::map<const void*, PerOptimizer> optimizers_;
  std::vector<torch::Tensor> found_;  // found_inf of plain lists since the last update()
};

// For scalers with their own update rule. Divides gradients of any dtypes in place by a scale (float32 0-dim) and
// returns found_inf, as GradScaler::unscale_ does. The bits are PyTorch's: it checks before the division, and it
// divides by multiplying with the reciprocal. No host sync on a GPU.
VERNIER_API torch::Tensor unscale_gradients_(const std::vector<torch::Tensor>& gradients, const torch::Tensor& scale);

}  // namespace vernier
