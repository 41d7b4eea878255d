// The update rules of Adam, AdamW and SGD, in one form.
#pragma once

#include <vernier/optim.h>

#include <functional>
#include <optional>
#include <vector>

#include "tensor_lists.h"

namespace vernier {

using MaybeTensor = std::optional<torch::Tensor>;

// The arguments of a kernel: the parameters that have a gradient, with their state.
struct UpdateLists {
  TensorVector parameters, gradients, steps;
  std::vector<TensorVector> slots;   // in the order of UpdateRule::slots
  std::vector<std::size_t> numbers;  // indices of the parameters in the whole optimizer
};

// One kind of state tensor, which each parameter has.
struct Slot {
  const char* name;
  std::optional<torch::ScalarType> dtype = {};               // none: the parameter's dtype
  bool for_blocks = false;                                   // true: one number for each block of BlockQuantisation
  torch::Tensor like(const torch::Tensor& parameter) const;  // zeros
};

struct UpdateRule {
  std::vector<Slot> slots;
  bool counts_steps = false;
  AdamState kept_in = AdamState::full;
  std::function<void(const UpdateLists&, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf)> apply;
};

// Returns the rule for one parameter, which depends on its dtype and size. Throws Error if the options do not suit it.
UpdateRule rule_of(const AdamWOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdamOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const SGDOptions& options, const torch::Tensor& parameter);
// Throw Error if an option is out of range.
void require_in_range(const AdamWOptions& options);
void require_in_range(const AdamOptions& options);
void require_in_range(const SGDOptions& options);

}  // namespace vernier
