#include <ATen/ATen.h>
#include <vernier/error.h>
#include <vernier/options.h>
#include <vernier/run.h>

namespace vernier {

void Run::notice(const char* name, Notice::Details details, std::string sentence) {
  notices.push_back({name, step, std::move(details), std::move(sentence)});
}

Better Run::better(const std::string& metric) const {
  if (!measures) return metric == "validation_loss" ? Better::lower : Better::unknown;
  std::vector<std::string> names;
  std::string all;
  for (const auto& measure : *measures) {
    if (measure.name == metric) return measure.better;
    names.push_back(measure.name);
    all += (all.empty() ? "" : ", ") + measure.name;
  }
  const auto text = "\"" + metric + "\" is not a metric of this run's validations; ";
  if (names.empty())
    refuse(text + "there are none, because no data is held out; set `validation_share` or `validation` of [task]");
  const auto near = nearest(metric, names);
  refuse(text + (near.empty() ? "they measure " : "did you mean \"" + near + "\"? They measure ") + all);
}

std::vector<torch::Tensor> Run::gradients() {
  std::vector<torch::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    if (const auto& gradient = parameter.master.grad(); gradient.defined()) gradients.push_back(gradient);
  }
  scaled_norm.reset();  // whoever has them may change them
  if (grad_scale.defined() && !gradients.empty()) {
    const torch::NoGradGuard no_grad;
    at::_foreach_div_(gradients, grad_scale);  // as the optimizers' kernels divide, to the last bit
  }
  grad_scale.reset();
  return gradients;
}

std::vector<std::string> Run::non_finite_gradients() const {
  std::vector<std::string> names;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.master.grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) names.push_back(parameter.name);
  }
  return names;
}

}  // namespace vernier
