// rprop: steps by the sign of the gradient, with a size for each weight, with the rule of torch.optim.Rprop. For the
// whole data as one batch. Source: Riedmiller and Braun, A Direct Adaptive Method for Faster Backpropagation Learning,
// ICNN 1993.
//   learning_rate = 0.01   a schedule multiplies every step
//   eta_minus = 0.5, eta_plus = 1.2, step_min = 1e-6, step_max = 50, and those of fused_plugin.h
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
