// flight_recorder: what it looks at in a run.
#include "looks.h"

#include <cmath>
#include <sstream>

namespace recorder {

using vernier::Run;

std::string layer_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

double pending_scale(const Run& run) {
  return run.grad_scale.defined() ? run.grad_scale.item<double>() : 1.0;
}

bool have_finite_sums(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  bool all = true;
  std::vector<torch::Tensor> far;
  for (const auto& tensor : tensors) {
    const auto sum = tensor.sum();
    if (sum.is_cpu()) {
      all = all && std::isfinite(sum.item<float>());
    } else {
      far.push_back(sum.to(torch::kFloat32));
    }
  }
  return all && (far.empty() || std::isfinite(torch::stack(far).sum().item<float>()));
}

bool is_finite(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  return tensor.isfinite().all().item<bool>();
}

std::string plugin_of(const std::string& role, const vernier::State& snapshot) {
  std::istringstream ids(snapshot.text("run/plugins"));
  for (std::string id; ids >> id;) {
    if (id.starts_with(role + "/")) return id;
  }
  return role;
}

std::vector<std::pair<std::string, torch::Tensor>> state_of(const vernier::State& plugin, const std::string& parameter,
                                                            std::size_t number) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& [key, tensor] : plugin.tensors) {
    if (!tensor.is_floating_point()) continue;
    for (const auto& name : {parameter, std::to_string(number)}) {
      if (key.starts_with(name + "/")) all.emplace_back(key.substr(name.size() + 1), tensor);
      if (key.ends_with("/" + name)) all.emplace_back(key.substr(0, key.size() - name.size() - 1), tensor);
    }
  }
  return all;
}

}  // namespace recorder
