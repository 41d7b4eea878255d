// What makes one optimizer differ from another.
#pragma once

#include <vernier/optim.h>

#include <functional>
#include <optional>
#include <vector>

#include "tensor_lists.h"

namespace vernier {

using MaybeTensor = std::optional<torch::Tensor>;

// What a kernel takes: the parameters that have a gradient, and what belongs to each.
struct UpdateLists {
  TensorVector parameters, gradients, steps;
  std::vector<TensorVector> slots;      // in the order of UpdateRule::slots
  std::vector<std::size_t> numbers;  // of the parameters in the whole optimizer
};

// A state tensor of each parameter.
struct Slot {
  const char* name;
  std::optional<torch::ScalarType> dtype = {};  // none: the parameter's
  bool for_blocks = false;                      // one number a block of BlockQuantisation, not of the parameter's shape
  torch::Tensor like(const torch::Tensor& parameter) const;  // zeros
};

struct UpdateRule {
  std::vector<Slot> slots;
  bool counts_steps = false;
  AdamState kept_in = AdamState::full;
  std::function<void(const UpdateLists&, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf)> apply;
};

// For one parameter of a group, by its dtype and size. Throws Error where an option is out of range or not for it.
UpdateRule rule_of(const AdamWOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdamOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const SGDOptions& options, const torch::Tensor& parameter);
void require_in_range(const AdamWOptions& options);
void require_in_range(const AdamOptions& options);
void require_in_range(const SGDOptions& options);

}  // namespace vernier
