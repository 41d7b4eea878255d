// adadelta: steps of the size of earlier steps, with the rule of torch.optim.Adadelta.
// Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701.
//   learning_rate = 1   multiplies the steps; the rule itself has none
//   weight_decay = 0    added to the gradient
//   rho = 0.9, eps = 1e-6   decay of the means of squares, of gradients and of steps; added to both
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 1, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

struct AdadeltaPlugin final : FusedPlugin<vernier::AdadeltaOptions> {
  explicit AdadeltaPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()},
                    {{"rho", &Settings::rho, "decay of the means of squares", vernier::between(0, 1)},
                     eps("added to the means of squares")}) {}
};

VERNIER_PLUGIN(AdadeltaPlugin, "adadelta", "1.0.0")
