#include <c10/util/ScopeExit.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/with_weights.h>

#include <utility>

#include "base/asked_weights.h"

namespace vernier {

namespace {

thread_local AskedWeights* asked_weights = nullptr;

}  // namespace

AskedWeights::AskedWeights() : before_(std::exchange(asked_weights, this)) {}
AskedWeights::~AskedWeights() {
  asked_weights = before_;
}
AskedWeights* AskedWeights::current() {
  return asked_weights;
}

torch::Tensor with_weights(const std::vector<torch::Tensor>& weights, const Run& run,
                           const std::function<torch::Tensor()>& body) {
  if (weights.size() != run.parameters.size()) {
    throw Error(c10::str("with_weights() got ", weights.size(), " weights for ", run.parameters.size(), " parameters"),
                Error::Kind::plugin);
  }
  if (asked_weights != nullptr) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      asked_weights->weights.emplace_back(run.parameters[i].model, weights[i]);
    }
    return body();
  }
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> changed;
  const auto put_back = c10::make_scope_exit([&changed] {
    for (auto& [weight, trained] : changed) weight.copy_(trained);
  });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& weight = run.parameters[i].model;
    changed.emplace_back(weight, weight.clone());
    weight.copy_(weights[i]);
  }
  return body();
}

Averages::~Averages() = default;

Averages* averages_of(const Run& run) {
  return dynamic_cast<Averages*>(run.control);
}

}  // namespace vernier
