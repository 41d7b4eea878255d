// An exponential moving average of weights, to evaluate and to export (Polyak and Juditsky 1992). The numbers are those
// of PyTorch's torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
//
//   vernier::Ema average({.decay = 0.999});
//   optimizer.step();
//   average.update(model->parameters());     // after each update
//   average.copy_to(smoothed->parameters());  // into another model of the same kind
#pragma once

#include <vernier/abi.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <vector>

namespace vernier {

struct VERNIER_API EmaOptions {
  double decay = 0.999;  // the share of the average that an update keeps: at least 0, below 1
  bool warmup = false;   // less at first: min(decay, (1 + n) / (10 + n)) after n updates
};

// For the weights of one model, on one thread. The average is float32, or float64 for float64 weights, on their device.
// Of whole numbers, such as the counts of a batch norm, it keeps the newest ones.
class VERNIER_API Ema {
 public:
  explicit Ema(EmaOptions options = {});  // throws Error if the decay is out of range

  // Call it after each update, always with the same weights in the same order. The first average is a copy of them.
  // skip_update: float32 0-dim on their device; if it is not 0, nothing changes. Throws Error if the number of weights
  // or a shape has changed. No host sync on a GPU.
  void update(const std::vector<torch::Tensor>& weights, const torch::Tensor& skip_update = {});

  // Copies the average into tensors of any dtypes and devices. Throws Error if there is none yet, or as update() does.
  void copy_to(const std::vector<torch::Tensor>& weights) const;

  const std::vector<torch::Tensor>& tensors() const { return tensors_; }  // empty before the first update
  torch::Tensor updates() const;  // int64 0-dim; on a GPU, where the device counts
  bool is_empty() const;          // no update so far; on a GPU a host sync

  // "updates", and the average under the weight's index: "average/0". Empty before the first update. state_dict()
  // shares its tensors, which the next update() changes; load_state_dict() copies.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  void lay_out(const std::vector<torch::Tensor>& like);
  void update_on_host(const std::vector<torch::Tensor>& weights, const torch::Tensor& skip_update);

  EmaOptions options_;
  bool is_laid_out_ = false;  // the tensors have the device and the strides of the weights
  std::vector<torch::Tensor> tensors_;
  std::int64_t updates_ = 0;  // if the host counts them
  torch::Tensor on_device_;   // if it does not: int64 0-dim
};

}  // namespace vernier
