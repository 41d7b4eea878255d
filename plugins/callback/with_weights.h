// What callbacks share that validate with other weights than the trained ones.
#pragma once

#include <vernier/run.h>

#include <functional>
#include <utility>
#include <vector>

// Runs a validation with these weights in the model, one for each of run.parameters, rounded to its dtype. Afterwards
// the trained weights return, with the same bits, even if the validation throws. The weights are overwritten, not
// replaced: layers stay known by their storage, and their versions show the change.
inline torch::Tensor validate_with(const std::vector<torch::Tensor>& weights, const vernier::Run& run,
                                   const std::function<torch::Tensor()>& validate) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> changed;
  const auto put_back = [&changed] {
    for (auto& [weight, trained] : changed) weight.copy_(trained);
  };
  torch::Tensor loss;
  try {
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      const auto& weight = run.parameters[i].model;
      changed.emplace_back(weight, weight.clone());
      weight.copy_(weights[i]);
    }
    loss = validate();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return loss;
}
