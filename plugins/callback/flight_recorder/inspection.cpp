// flight_recorder: what it looks at in a run, and what it keeps of it.
#include "inspection.h"

#include <sys/stat.h>
#include <torch/types.h>
#include <vernier/checkpoint_folder.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

namespace recorder {

using vernier::Run;

std::string layer_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

vernier::NonFiniteOrigin update_of(const std::string& parameter) {
  vernier::NonFiniteOrigin origin;
  origin.phase = "update";
  origin.tensor = parameter;
  origin.layer = layer_of(parameter);
  return origin;
}

bool is_skipped(const Run& run) {
  return run.skip_update.defined() && run.skip_update.item<float>() != 0;
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

std::size_t first_bad(const Run& run) {
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : vernier::weights_of(run)) all.push_back(tensor);
  if (have_finite_sums(all)) return run.parameters.size();
  const auto is_bad = [](const auto& parameter) { return !is_finite(parameter.best()) || !is_finite(parameter.model); };
  return static_cast<std::size_t>(std::ranges::find_if(run.parameters, is_bad) - run.parameters.begin());
}

const torch::Tensor& bad_weight(const vernier::Parameter& parameter) {
  return is_finite(parameter.best()) ? parameter.model : parameter.best();
}

bool is_bad_cast(const vernier::Parameter& parameter) {
  return !parameter.best().is_same(parameter.model) && is_finite(parameter.best()) && !is_finite(parameter.model);
}

std::optional<vernier::NonFiniteOrigin> norm_that_overflows(const Run& run) {
  vernier::NonFiniteOrigin origin;
  const double scale = pending_scale(run);
  double largest = -1;
  for (const auto& parameter : run.parameters) {
    if (!parameter.master.grad().defined()) continue;
    auto range = vernier::range_of(parameter.master.grad());
    range.amax /= scale;
    range.rms /= scale;
    if (range.amax <= largest) continue;
    largest = range.amax;
    origin.tensor = parameter.name;
    origin.layer = layer_of(parameter.name);
    origin.inputs = {{"gradient", range}};
  }
  // In float32 a norm overflows where values are beyond the root of its largest number.
  if (largest < 1e15) return std::nullopt;
  origin.phase = "norm";
  return origin;
}

vernier::State copy_of_state(const Run& run) {
  vernier::State state;
  const auto live = run.control->snapshot();
  for (const auto& [name, tensor] : live.tensors) {
    state.put(name, tensor.detach().to(torch::Device(torch::kCPU), /*non_blocking=*/false, /*copy=*/true));
  }
  std::ifstream in(run.output + "/config.toml", std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (in) state.put("run/toml", text.str());
  return state;
}

std::string write(const Run& run, const vernier::Capsule& capsule) {
  if (run.output.empty()) return "";
  const auto folder = run.output + "/capsules";
  const auto path = folder + "/" + vernier::checkpoint_name(capsule.step);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw vernier::Error(folder + ": cannot be made: " + std::strerror(errno));
  }
  vernier::write_capsule(path, capsule, run.name);
  return path;
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
