// Shared by callbacks that keep an average of the weights.
#pragma once

#include <vernier/draft/gradient_parts.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>
#include <vernier/run.h>
#include <vernier/state.h>

#include <string>
#include <vector>

// For callbacks that need exact weights: parameter.best(). Where another rank has the float32 master of a weight, this
// rank has only what is rounded from it.
inline torch::Tensor exact_weight(const vernier::Parameter& parameter, const std::string& who) {
  if (vernier::draft::GradientParts::exist() && vernier::draft::ModelParts::current() == nullptr) {
    vernier::refuse(who + " needs all weights, and each is on one rank; use distributed/zero1", who);
  }
  if (parameter.owned || parameter.master.is_same(parameter.model)) return parameter.best().detach();
  vernier::refuse(who + " needs float32 weights, and another rank has the master of " + parameter.name +
                      "; use distributed/ddp, or a precision whose weights are in float32 (level O1)",
                  who);
}

// Called in prepare, so that it is refused before the first step.
inline void refuse_masters_of_other_ranks(const vernier::Run& run, const std::string& who) {
  for (const auto& parameter : run.parameters) exact_weight(parameter, who);
}

// Saves an average of the weights as "average/NAME", for each of run.parameters.
inline void save_average(vernier::State& state, const vernier::Run& run, const std::vector<torch::Tensor>& average) {
  for (std::size_t i = 0; i < average.size(); ++i) state.put("average/" + run.parameters[i].name, average[i]);
}

// Returns a copy of the average that save_average() saved. Throws Error if a shape is not that of the weights.
inline std::vector<torch::Tensor> load_average(const vernier::State& state, const vernier::Run& run) {
  std::vector<torch::Tensor> average;
  for (const auto& parameter : run.parameters) {
    const auto saved = state.tensor("average/" + parameter.name);
    average.push_back(saved.to(parameter.model.device(), saved.scalar_type(), false, /*copy=*/true));
    if (average.back().sizes() == parameter.model.sizes()) continue;
    throw vernier::Error(c10::str("the saved average of ", parameter.name, " is ", average.back().sizes(),
                                  ", and the weights are ", parameter.model.sizes()));
  }
  return average;
}
