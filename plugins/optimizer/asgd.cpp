// asgd: plain steps whose size decays, and the average of the weights, with the rule of torch.optim.ASGD. Once the
// average has begun, validations, exports and predictions use it.
// Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992.
//   learning_rate = 0.01  step t, from 0, has learning_rate / (1 + lambd * learning_rate * t)^alpha
//   weight_decay = 0      added to the gradient
//   lambd = 1e-4          decay of the weights, times the size of a step; and of that size, as above
//   alpha = 0.75
//   t0 = 1000000          updates before the average begins
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01, group.weight_decay = 0   as above, for these parameters
#include <vernier/with_weights.h>

#include "fused_plugin.h"

class ASGDPlugin final : public FusedPlugin<vernier::ASGDOptions> {
 public:
  explicit ASGDPlugin(vernier::Options& options)
      : FusedPlugin(
            options, {rate(), added_decay()},
            {{"lambd", &Settings::lambd, "decay of the weights, times the size of a step", vernier::at_least(0)},
             {"alpha", &Settings::alpha, "power by which the size of steps decays", vernier::at_least(0)},
             {"t0", &Settings::t0, "updates before the average begins", vernier::at_least(0)}}) {}

  void check(const vernier::Run& run) override {
    if (static_cast<double>(run.steps) <= settings().t0) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.owned) continue;
      vernier::refuse(id() + ": the average of " + parameter.name +
                          " is on another rank; use distributed/ddp, or a t0 beyond the last step",
                      id());
    }
  }

  torch::Tensor evaluate(vernier::Run& run, const std::function<torch::Tensor()>& body) override {
    const bool has_begun = static_cast<double>(run.updates) > settings().t0;  // until then it is the weights
    if (!has_begun && static_cast<double>(run.steps) <= settings().t0) return body();
    const auto state = has_begun ? save() : vernier::State();
    std::vector<torch::Tensor> average;
    for (const auto& parameter : run.parameters) {
      const auto entry = parameter.name + "/ax";
      average.push_back(state.has(entry) ? state.tensor(entry) : parameter.model.detach());
    }
    return vernier::with_weights(average, run, body);
  }
};

VERNIER_PLUGIN(ASGDPlugin, "asgd", "1.0.0")
