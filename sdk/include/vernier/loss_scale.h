// The scale of a loss and the law by which it moves: PyTorch's, DeepSpeed's, Megatron-Core's, apex's, or parts of them.
// For scalers with gradients of their own; torch.amp.GradScaler in C++ is grad_scaler.h.
//
//   vernier::LossScale scale(device, vernier::loss_scale_preset("megatron"));
//   (loss * scale.tensor()).backward();
//   const auto found_inf = vernier::unscale_gradients_(gradients, scale.tensor());
//   optimizer.step(found_inf);
//   scale.update(found_inf);
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>
#include <vernier/state.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

struct Run;

// When the overflows that may be absorbed are counted anew.
enum class Refill { growth, good_step };

// An overflow is a step whose gradients have an inf or nan; each other step is good. Factors multiply in float64, and
// the product is rounded to float32, as PyTorch does.
struct VERNIER_API LossScaleOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;           // after growth_interval good steps in a row
  double backoff_factor = 0.5;          // at an overflow that is not absorbed
  std::int64_t growth_interval = 2000;
  double min_scale = 0.0;               // 0: none but float32's smallest normal number, where is_exhausted() becomes true
  double max_scale = 0.0;               // 0: none; growth beyond float32 is left out
  std::int64_t hysteresis = 1;          // the scale moves at this overflow: those before, since the refill, are absorbed
  Refill refill = Refill::growth;
  bool counts_first = true;             // false: the first good step of a row is not counted (DeepSpeed)
  bool fails_at_min = false;            // an overflow that finds the scale at min_scale exhausts it (DeepSpeed)
};

// The rule and the defaults of a project: "pytorch", "deepspeed", "megatron", "apex". Sources: docs/scalers.md. Throws
// Error for another name.
VERNIER_API LossScaleOptions loss_scale_preset(const std::string& name);

// What is wrong with the options, as "max_scale" and a reason; empty strings where nothing is.
struct VERNIER_API Contradiction {
  std::string option, reason;
};
VERNIER_API Contradiction contradiction(const LossScaleOptions& options);

// One thread. Never 0, inf or nan.
class VERNIER_API LossScale {
 public:
  // Throws Error where options contradict each other. by_operators: the law in operators of tensors as on a GPU, without
  // a host sync; on the CPU plain arithmetic gives the same bits in less time.
  LossScale(torch::Device device, LossScaleOptions options = {});
  LossScale(torch::Device device, LossScaleOptions options, bool by_operators);

  const torch::Tensor& tensor() const { return scale_; }  // float32 0-dim on the device; update() changes it in place
  // After each step. found_inf: 0-dim on the device, not 0 for an overflow. passed_over: bool 0-dim, true for a step that
  // is neither good nor an overflow; undefined: false.
  void update(const torch::Tensor& found_inf, const torch::Tensor& passed_over = {});

  double value() const;       // host sync
  bool is_exhausted() const;  // host sync: no smaller scale is allowed, and overflows go on
  const LossScaleOptions& options() const { return options_; }

  // "scale" and "_growth_tracker" as GradScaler::state_dict() has them, "_hysteresis"; on the device, without a host sync.
  // load() keeps the options of now, and brings a scale that is out of their range into it.
  State save() const;
  void load(const State& state);

 private:
  void update_on_host(bool overflow);
  void update_by_operators(const torch::Tensor& found_inf);

  LossScaleOptions options_;
  bool by_operators_;
  torch::Tensor scale_, tracker_, left_, exhausted_;  // float32, int32, int32, int32
};

// Scaler::unscale for any law: one pass that reads the run's gradients and sets found_inf; the division is left to the
// optimizer where all are float32 (Run::grad_scale), and done at once, as unscale_gradients_() does it, where not.
VERNIER_API void unscale(Run& run, const torch::Tensor& scale);

// The share of elements whose size, scaled, is below float16's smallest normal number (2^-14): 0, or with digits lost.
// Of at most 64 rows of each tensor, evenly spread; rows of nothing but zeros (words that were not in the batch) do not
// count, unless there is nothing else: then it is 1. float32 0-dim on the device of the first; undefined for an empty list. No host sync on a GPU.
VERNIER_API torch::Tensor underflow_share(const std::vector<torch::Tensor>& scaled_gradients);

}  // namespace vernier
