// adagrad: divides gradients by the root of the sum of all their squares, in one fused pass, with the rule of
// torch.optim.Adagrad. Source: Duchi et al., Adaptive Subgradient Methods, JMLR 12, 2011.
//   learning_rate = 0.01
//   weight_decay = 0    added to the gradient
//   lr_decay = 0        step t, from 0, has the learning rate divided by 1 + t * lr_decay
//   initial_accumulator_value = 0, eps = 1e-10
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

class AdagradPlugin final : public FusedPlugin<vernier::AdagradOptions> {
 public:
  explicit AdagradPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()},
                    {{"lr_decay", &Settings::lr_decay, "step t divides the learning rate by 1 + t times it",
                      vernier::at_least(0)},
                     {"initial_accumulator_value", &Settings::initial_accumulator_value,
                      "sum of squares before the first step", vernier::at_least(0)},
                     eps("added to the root of the sum of squares")}) {}

 private:
  void finish(vernier::ParameterGroup<Settings>& group, const vernier::Run& run) const override {
    if (group.options.initial_accumulator_value < 1e-5) refuse_small_eps(group.options.eps, run);
  }
};

VERNIER_PLUGIN(AdagradPlugin, "adagrad", "1.0.0")
