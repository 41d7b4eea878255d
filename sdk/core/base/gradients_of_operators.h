// Gradients of a function of this library by LibTorch's operators, which have derivatives of any order.
#pragma once

#include <torch/csrc/autograd/autograd.h>

namespace vernier {

// Called in the backward of a torch::autograd::Function. Computes operators(inputs) once more, and returns the
// gradients of the inputs: undefined for an input that is undefined or needs none. They can be differentiated again if
// gradients are recorded now.
//   inputs: saved by forward; one may be computed from another
//   operators: takes and returns a variable_list
//   slopes: of what `operators` returns; those that are undefined count as 0
template <class Operators>
torch::autograd::variable_list gradients_of_operators(torch::autograd::variable_list inputs,
                                                      const torch::autograd::variable_list& slopes,
                                                      const Operators& operators) {
  const bool is_recorded = at::GradMode::is_enabled();
  const at::AutoGradMode records(true);
  torch::autograd::variable_list leaves, outputs, above, gradients(inputs.size());
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    // An alias, so that no gradient contains what flows to one input through another.
    inputs[i] = is_recorded ? inputs[i].view_as(inputs[i]) : inputs[i].detach().requires_grad_();
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
