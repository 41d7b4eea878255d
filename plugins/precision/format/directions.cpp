#include "directions.h"

#include <ATen/ops/dot.h>
#include <torch/types.h>
#include <vernier/control.h>

#include <utility>
#include <vector>

namespace formats {

namespace {

torch::Tensor flat(const torch::Tensor& gradient) {
  return gradient.detach().to(torch::kFloat64).flatten();
}

}  // namespace

std::map<std::string, Angle> directions_of(vernier::Run& run, const std::set<std::string>& layers, bool& is_exact) {
  if (run.control == nullptr) return {};
  std::vector<std::pair<std::string, torch::Tensor>> rounded;
  for (const auto& parameter : run.parameters) {
    const auto layer = parameter.name.substr(0, parameter.name.rfind('.'));
    const bool is_wanted = layers.contains(layer) && parameter.model.grad().defined();
    rounded.emplace_back(layer, is_wanted ? flat(parameter.model.grad()).clone() : torch::Tensor());
  }
  std::map<std::string, Angle> angles;
  const auto compare = [&] {
    is_exact = false;
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      const auto& [layer, gradient] = rounded[i];
      const auto& again = run.parameters[i].model.grad();
      if (!gradient.defined() || !again.defined()) continue;
      const auto exact = flat(again);
      auto& angle = angles[layer];
      angle.both += at::dot(gradient, exact).item<double>();
      angle.rounded += at::dot(gradient, gradient).item<double>();
      angle.exact += at::dot(exact, exact).item<double>();
    }
  };
  is_exact = true;
  try {
    run.control->rerun([] {}, compare);
  } catch (...) {
    is_exact = false;
    throw;
  }
  is_exact = false;
  return angles;
}

}  // namespace formats
