// adafactor: keeps the squares of a matrix as means of its rows and columns, with the rule of torch.optim.Adafactor.
// Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, ICML 2018.
//   learning_rate = 0.01  largest relative step; step t has min(learning_rate, 1 / sqrt(t)). A schedule multiplies it
//   weight_decay = 0      times the learning rate, taken off the weights
//   beta2_decay = -0.8    the mean of squares decays by 1 - t^beta2_decay in step t
//   eps1 = 0              least root mean square of gradients; 0: the epsilon of the weights' dtype
//   eps2 = 0.001          least root mean square of weights that scales a step
//   clipping_threshold = 1   largest root mean square of an update, before it is scaled
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []            [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

struct AdafactorPlugin final : FusedPlugin<vernier::AdafactorOptions> {
  explicit AdafactorPlugin(vernier::Options& options)
      : FusedPlugin(
            options, {rate("largest relative step size, before schedules"), taken_decay()},
            {{"beta2_decay", &Settings::beta2_decay, "the mean of squares decays by 1 - t^beta2_decay",
              vernier::between(-10, 0)},
             {"eps1", &Settings::eps1, "least root mean square of gradients; 0: the dtype's epsilon",
              vernier::at_least(0)},
             {"eps2", &Settings::eps2, "least root mean square of weights that scales a step", vernier::at_least(0)},
             {"clipping_threshold", &Settings::clipping_threshold, "largest root mean square of an update",
              vernier::at_least(1)}}) {}
};

VERNIER_PLUGIN(AdafactorPlugin, "adafactor", "1.0.0")
