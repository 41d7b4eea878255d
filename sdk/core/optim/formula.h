// Update rules as formulas of LibTorch's operators, for any dtype and device, one parameter at a time.
#pragma once

#include <functional>

#include "optim_rule.h"

namespace vernier {

// One parameter in float64 if it has that dtype, else in float32. A formula replaces parameter and slots by new
// tensors, and changes none of those that it was given. No host sync.
struct FormulaUpdate {
  torch::Tensor parameter, gradient;  // the gradient is divided by grad_scale
  TensorVector slots;                 // in the order of UpdateRule::slots
  torch::Tensor step;                 // float64 0-dim, 1 in the first update; undefined unless UpdateRule::counts_steps
};
using Formula = std::function<void(FormulaUpdate& update, double lr)>;

// Applies it to each parameter, and rounds the results to the dtypes of parameter and slots. If found_inf is not 0,
// nothing changes. On a CPU each parameter is computed by one thread, so the bits do not depend on their number.
void apply_formula(const UpdateLists& lists, const Formula& formula, double lr, const MaybeTensor& grad_scale,
                   const MaybeTensor& found_inf);

// UpdateRule::apply for a formula.
inline auto by_formula(Formula formula) {
  return [formula = std::move(formula)](const UpdateLists& lists, double lr, const MaybeTensor& grad_scale,
                                        const MaybeTensor& found_inf) {
    apply_formula(lists, formula, lr, grad_scale, found_inf);
  };
}

}  // namespace vernier
