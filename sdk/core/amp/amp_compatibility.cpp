#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <vernier/amp_compatibility.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/layers.h>

#include <algorithm>

#include "wide_weights.h"

namespace vernier {

namespace {

using Findings = std::vector<AmpFinding>;

void add(Findings& findings, AmpFinding finding) {
  if (std::ranges::find(findings, finding) == findings.end()) findings.push_back(std::move(finding));
}

bool is_wide(c10::ScalarType dtype) {
  return dtype == torch::kFloat32 || dtype == torch::kFloat64;
}

// Notes operations with wide results.
class Wide final : public Interceptor {
 public:
  explicit Wide(Findings& findings) : findings_(findings) {}

  Values call(const Operation& operation, Values arguments) override {
    bool has_16_bits = false;
    for (const auto& argument : arguments) {
      if (argument.isTensor() && argument.toTensor().defined()) {
        const auto dtype = argument.toTensor().scalar_type();
        has_16_bits = has_16_bits || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
      }
    }
    auto results = operation.proceed(std::move(arguments));
    if (results.empty() || !results[0].isTensor() || !results[0].toTensor().defined()) return results;
    const auto dtype = results[0].toTensor().scalar_type();
    const auto name = std::string(operation.name()), layer = std::string(operation.layer());
    if (!is_wide(dtype)) return results;
    if (has_16_bits) {
      add(findings_, {layer, "autocast computes " + name + " in float32"});
    } else if (operation.layer_index() >= 0) {
      add(findings_, {layer, name + " has the dtype of its weight and input, " + c10::toString(dtype)});
    }
    return results;
  }

 private:
  Findings& findings_;
};

void add_weights(const torch::nn::Module& model, Findings& findings) {
  for (const auto& entry : model.named_modules()) {
    const auto& module = *entry.value();
    const auto parameters = module.named_parameters(/*recurse=*/false);
    const bool is_double = std::ranges::any_of(
        parameters, [](const auto& parameter) { return parameter.value().scalar_type() == torch::kFloat64; });
    if (is_double) add(findings, {entry.key(), "its weights are float64, which autocast, O2 and O3 leave alone"});
    if (has_float32_weights(module) && !parameters.is_empty() && !is_double) {
      add(findings, {entry.key(), "its weights stay float32 at O2 and O3, as their kernels take them"});
    }
  }
}

}  // namespace

std::vector<AmpFinding> check_amp_compatibility(const torch::nn::Module& model, const std::function<void()>& forward,
                                                c10::ScalarType dtype) {
  if (dtype != torch::kBFloat16 && dtype != torch::kFloat16) {
    throw Error(c10::str("mixed precision computes in BFloat16 or Half, not in ", dtype), Error::Kind::configuration);
  }
  Findings findings;
  const auto parameters = model.parameters();
  const auto device = parameters.empty() ? torch::kCPU : parameters.front().device().type();
  {
    const torch::NoGradGuard no_grad;
    Layers layers(model);
    Wide wide(findings);
    const Autocast autocast(device, dtype);
    const Intercept intercept(layers, wide);
    forward();
  }
  add_weights(model, findings);
  return findings;
}

}  // namespace vernier
