// The update rules of all optimizers, in one form.
#pragma once

#include <vernier/optim.h>

#include <functional>
#include <optional>
#include <string_view>
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

// A state tensor has a number for each of these: elements of the parameter, blocks of BlockQuantisation, rows or
// columns of the last two dimensions, the whole.
enum class NumberFor { element, block, row, column, tensor };

// One kind of state tensor, which each parameter has.
struct Slot {
  std::string_view name;
  std::optional<torch::ScalarType> dtype = {};  // none: the parameter's dtype
  NumberFor each = NumberFor::element;
  double initial = 0;
  torch::Tensor like(const torch::Tensor& parameter) const;
  bool operator==(const Slot&) const = default;
};

struct UpdateRule {
  std::vector<Slot> slots;
  bool counts_steps = false;
  AdamState kept_in = AdamState::full;
  std::function<void(const UpdateLists&, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf)> apply;
};

// Returns the rule for one parameter, which depends on its dtype and shape. Throws Error if the options do not suit it.
UpdateRule rule_of(const AdamWOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdamOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const SGDOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const RMSpropOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdagradOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const LionOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const LambOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdafactorOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const MuonOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdadeltaOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const NAdamOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const RAdamOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const AdamaxOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const RpropOptions& options, const torch::Tensor& parameter);
UpdateRule rule_of(const ASGDOptions& options, const torch::Tensor& parameter);
// Throw Error if an option is out of range.
void require_in_range(const AdamWOptions& options);
void require_in_range(const AdamOptions& options);
void require_in_range(const SGDOptions& options);
void require_in_range(const RMSpropOptions& options);
void require_in_range(const AdagradOptions& options);
void require_in_range(const LionOptions& options);
void require_in_range(const LambOptions& options);
void require_in_range(const AdafactorOptions& options);
void require_in_range(const MuonOptions& options);
void require_in_range(const AdadeltaOptions& options);
void require_in_range(const NAdamOptions& options);
void require_in_range(const RAdamOptions& options);
void require_in_range(const AdamaxOptions& options);
void require_in_range(const RpropOptions& options);
void require_in_range(const ASGDOptions& options);

// Throws Error unless `right`, for the option with this value. range: what it must be.
void require(bool right, const char* option, double value, const char* range);

}  // namespace vernier
