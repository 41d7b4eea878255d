#include "activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <map>

namespace language {

namespace {

// transformers has three programs for gelu by tanh, which differ in their last bits alone.
const std::map<std::string, Activation>& activations() {
  static const Activation by_tanh = [](const torch::Tensor& x) { return at::gelu(x, "tanh"); };
  static const Activation silu = [](const torch::Tensor& x) { return at::silu(x); };
  static const std::map<std::string, Activation> all = {
      {"gelu_new", by_tanh},
      {"gelu_pytorch_tanh", by_tanh},
      {"gelu_fast", by_tanh},
      {"gelu", [](const torch::Tensor& x) { return at::gelu(x); }},
      {"silu", silu},
      {"swish", silu},
      {"relu", [](const torch::Tensor& x) { return at::relu(x); }},
      {"quick_gelu", [](const torch::Tensor& x) { return x * at::sigmoid(1.702 * x); }},
      {"tanh", [](const torch::Tensor& x) { return at::tanh(x); }},
  };
  return all;
}

}  // namespace

Activation activation_of(const Config& config, const char* key, const std::string& fallback) {
  const auto found = activations().find(config.text(key, fallback));
  if (found != activations().end()) return found->second;
  std::string names;
  for (const auto& [name, function] : activations()) names += (names.empty() ? "" : ", ") + name;
  config.refuse(key, ", and must be one of " + names);
}

}  // namespace language
