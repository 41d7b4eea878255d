#include <ATen/core/Tensor.h>
#include <vernier/grad_norm.h>
#include <vernier/grad_scaler.h>
#include <vernier/unscale.h>

#include <utility>

#include "optim/grad_norm_operators.h"
#include "optim/tensor_lists.h"

namespace vernier {

void unscale(Run& run, const torch::Tensor& scale) {
  const auto gradients = run.gradients();
  if (gradients.empty() || !can_inspect(gradients)) {
    run.found_inf = unscale_gradients_(gradients, scale);
    return;
  }
  const bool needs_each = run.results_are_late && gradients.front().is_cpu();
  auto inspected = needs_each ? inspect_by_operators(gradients) : inspect_gradients(gradients);
  run.found_inf = std::move(inspected.found_inf);
  run.norms.all = std::move(inspected.norm);
  run.norms.each = std::move(inspected.norms);
  run.grad_scale = moved(scale, gradients.front().device()).clone();
}

}  // namespace vernier
