#include <ATen/ATen.h>
#include <vernier/run.h>

namespace vernier {

void Run::notice(const char* name, std::vector<std::pair<std::string, Notice::Detail>> details) {
  notices.push_back({name, step, std::move(details)});
}

std::vector<torch::Tensor> Run::gradients() const {
  std::vector<torch::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    if (const auto& gradient = parameter.owned.grad(); gradient.defined()) gradients.push_back(gradient);
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
    const auto& gradient = parameter.owned.grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) names.push_back(parameter.name);
  }
  return names;
}

double Run::share() const {
  if (piece.weight && batch.weight) return *piece.weight / *batch.weight;
  return static_cast<double>(piece.samples) / static_cast<double>(batch.samples);
}

void Run::take(const Batch& next) {
  piece = next.to(device);
}

void Run::add_loss(const torch::Tensor& value) {
  const auto mean = weigh(value.detach().to(torch::kFloat32));
  loss = loss.defined() ? loss + mean : mean;
}

torch::Tensor Run::weigh(const torch::Tensor& value) const {
  return piece.samples == batch.samples ? value : value * share();
}

}  // namespace vernier
