// An exponential moving average of tensors.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace ema {

struct Rule {
  double decay = 0.999;  // what is kept of the average in an update
  bool warmup = false;   // less at first: min(decay, (1 + n) / (10 + n)) after n updates
};

// In float32, or in float64 where a tensor is that. One thread.
class Average {
 public:
  // by_operators: the rule in operators of tensors, as on a GPU, where the host must not wait for skip_update.
  Average(Rule rule, bool by_operators) : rule_(rule), by_operators_(by_operators) {}

  // One update, of the same tensors in each; the first is taken as it is. skip_update: float32 0-dim on their device,
  // not 0 where nothing changes, undefined: 0.
  void update(const std::vector<torch::Tensor>& with, const torch::Tensor& skip_update);

  const std::vector<torch::Tensor>& tensors() const { return tensors_; }  // empty before the first update
  torch::Tensor updates() const;                                          // int64 0-dim, where it is counted
  bool is_empty() const;                                                  // no update so far; on a GPU a host sync

  // Copies. like: tensors of the shapes and devices that are averaged.
  void load(std::int64_t updates, const std::vector<torch::Tensor>& saved, const std::vector<torch::Tensor>& like);
  void clear();

 private:
  void allocate(const std::vector<torch::Tensor>& like);
  void update_by_operators(const std::vector<torch::Tensor>& with, const torch::Tensor& skip_update);

  Rule rule_;
  bool by_operators_;
  std::vector<torch::Tensor> tensors_;
  std::int64_t updates_ = 0;  // where the host counts
  torch::Tensor on_device_;   // where it does not: int64 0-dim
};

}  // namespace ema
