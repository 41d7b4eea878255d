// flight_recorder: what it looks at in a run; see flight_recorder.cpp.
#pragma once

#include <vernier/sdk.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace recorder {

// "h.0.mlp" of "h.0.mlp.weight".
std::string layer_of(const std::string& parameter);

// What gradients are still multiplied by in memory.
double pending_scale(const vernier::Run& run);

// A sum hides neither inf nor nan; finite values may overflow in it, so where it says no a second look decides. On a
// GPU one host sync for all.
bool have_finite_sums(const std::vector<torch::Tensor>& tensors);
bool is_finite(const torch::Tensor& tensor);

// "optimizer/adamw" of the run's plugins.
std::string plugin_of(const std::string& role, const vernier::State& snapshot);

// What a plugin's state has of a parameter, by the parameter's name or its number: "exp_avg", "momentum_buffer".
std::vector<std::pair<std::string, torch::Tensor>> state_of(const vernier::State& plugin, const std::string& parameter,
                                                            std::size_t number);

// The last output of each layer of a step's first piece.
class Outputs final : public vernier::Interceptor {
 public:
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    if (!is_collecting) return operation.proceed(std::move(arguments));  // a layer that is computed again in backward
    const std::string layer(operation.layer());
    auto results = operation.proceed(std::move(arguments));
    const bool is_tensor = !layer.empty() && !results.empty() && results.front().isTensor();
    if (is_tensor && results.front().toTensor().is_floating_point()) {
      measured.emplace_back(layer, vernier::measure_range(results.front().toTensor()),
                            results.front().toTensor().scalar_type());
    }
    return results;
  }
  std::vector<std::tuple<std::string, torch::Tensor, torch::ScalarType>> measured;
  bool is_collecting = false;
};

}  // namespace recorder
