// For the backward of kernels that stand in the place of several operators of LibTorch.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace vernier {

// Runs LibTorch's operators once more and returns the gradients of their inputs, which have derivatives of any order
// themselves. inputs: some may be undefined. slopes: of the outputs; those that are undefined count as 0. Input i is
// the variable i of `context`.
template <class Operators>
torch::autograd::variable_list gradients_of_operators(torch::autograd::AutogradContext& context,
                                                      torch::autograd::variable_list inputs,
                                                      const torch::autograd::variable_list& slopes,
                                                      const Operators& operators) {
  const bool is_recorded = at::GradMode::is_enabled();
  const at::AutoGradMode records(true);
  torch::autograd::variable_list leaves, outputs, above, gradients(inputs.size());
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    const bool is_wanted = context.needs_input_grad(i);
    if (!is_recorded) inputs[i] = inputs[i].detach().requires_grad_(is_wanted);
    if (!is_wanted) continue;
    leaves.push_back(inputs[i]);
    places.push_back(i);
  }
  const torch::autograd::variable_list all = operators(inputs);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!slopes[i].defined() || !all[i].requires_grad()) continue;
    outputs.push_back(all[i]);
    above.push_back(slopes[i]);
  }
  if (outputs.empty()) return gradients;
  auto found = torch::autograd::grad(outputs, leaves, above, /*retain_graph=*/is_recorded, is_recorded,
                                     /*allow_unused=*/true);
  for (std::size_t i = 0; i < places.size(); ++i) gradients[places[i]] = std::move(found[i]);
  return gradients;
}

}  // namespace vernier
