// A loss scale and the rule that changes it: PyTorch's, DeepSpeed's, Megatron-Core's or apex's, or parts of them. It is
// for scalers that handle gradients themselves; grad_scaler.h has torch.amp.GradScaler in C++.
//
//   vernier::LossScale scale(device, vernier::loss_scale_preset("megatron"));
//   (loss * scale.tensor()).backward();
//   const auto found_inf = vernier::unscale_gradients_(gradients, scale.tensor());
//   optimizer.step(found_inf);
//   scale.update(found_inf);
#pragma once

#include <vernier/abi.h>
#include <vernier/error.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

// When overflows that only skip an update are counted anew: when the scale grows, or at each good step.
enum class Refill { growth, good_step };

// An overflow is a step whose gradients have an inf or nan; each other step is good. Factors multiply in float64, and
// the product is rounded to float32, as in PyTorch.
struct VERNIER_API LossScaleOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   // after growth_interval good steps in a row
  double backoff_factor = 0.5;  // at an overflow that lowers the scale
  std::int64_t growth_interval = 2000;
  double min_scale = 0.0;       // the scale stays there; 0: float32's smallest normal number
  double max_scale = 0.0;       // the scale stays there; 0: none, but it does not grow beyond float32
  std::int64_t hysteresis = 1;  // the overflow since the refill that lowers the scale; those before it do not
  Refill refill = Refill::growth;
  bool counts_first = true;  // false: the first good step of a row is not counted (DeepSpeed)
};

// The rule and the defaults of a project: "pytorch", "deepspeed", "megatron" or "apex". docs/guides/scalers.md has the
// sources. DeepSpeed raises an error at an overflow at its minimum; here the scale stays there. Throws Error for
// another name.
VERNIER_API LossScaleOptions loss_scale_preset(const std::string& name);

// The first option that contradicts the others.
VERNIER_API Contradiction contradiction(const LossScaleOptions& options);

// For one thread. The scale is never 0, inf or nan: however many steps overflow, it stays within its range.
class VERNIER_API LossScale {
 public:
  // Throws Error where options contradict each other.
  LossScale(torch::Device device, LossScaleOptions options = {});

  const torch::Tensor& tensor() const { return scale_; }  // float32 0-dim on the device; update() changes it in place
  // Called after each step. found_inf: 0-dim on the device, not 0 for an overflow. passed_over: bool 0-dim, true for a
  // step that is neither good nor an overflow; undefined: false.
  void update(const torch::Tensor& found_inf, const torch::Tensor& passed_over = {});

  double value() const;                                             // host sync
  const torch::Tensor& growth_tracker() const { return tracker_; }  // int32 0-dim; update() changes it in place
  const LossScaleOptions& options() const { return options_; }

  // "scale" and "_growth_tracker" as in GradScaler::state_dict(), and "_hysteresis"; on the device, without a host
  // sync. load_state_dict() keeps the current options, and brings a scale that is out of their range into it.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  void update_on_host(bool overflow);

  LossScaleOptions options_;
  torch::Tensor scale_, tracker_, left_;  // float32, int32, int32
};

// The share of elements whose scaled size is below float16's smallest normal number (2^-14): they are 0 or lose digits.
// It reads at most 64 rows of each tensor, evenly spread. Rows of zeros only (words that were not in the batch) do not
// count, unless there is nothing else: then the share is 1. Returns float32 0-dim on the device of the first tensor,
// and an undefined tensor for an empty list. No host sync on a GPU.
VERNIER_API torch::Tensor underflow_share(const std::vector<torch::Tensor>& scaled_gradients);

}  // namespace vernier
