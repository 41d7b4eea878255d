// rprop: steps by the sign of the gradient, with a size for each weight, with the rule of torch.optim.Rprop. For the
// whole data as one batch. Source: Riedmiller and Braun, A Direct Adaptive Method for Faster Backpropagation Learning,
// ICNN 1993.
//   learning_rate = 0.01  size of the first step; a schedule multiplies every step
//   eta_minus = 0.5, eta_plus = 1.2   factors of a weight's step where its gradient changed its sign, and where not
//   step_min = 1e-6, step_max = 50    least and largest step
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01   as above, for these parameters
#include "fused_plugin.h"

struct RpropPlugin final : FusedPlugin<vernier::RpropOptions> {
  explicit RpropPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate("size of the first step, before schedules", vernier::above(0))},
                    {{"eta_minus", &Settings::eta_minus, "factor of a step where the gradient changed its sign",
                      vernier::between(1e-6, 0.999999)},
                     {"eta_plus", &Settings::eta_plus, "factor of a step where it did not", vernier::above(1)},
                     {"step_min", &Settings::step_min, "least step", vernier::above(0)},
                     {"step_max", &Settings::step_max, "largest step", vernier::above(0)}}) {
    if (settings().step_max < settings().step_min) options.refuse("step_max", "is below step_min");
  }
};

VERNIER_PLUGIN(RpropPlugin, "rprop", "1.0.0")
