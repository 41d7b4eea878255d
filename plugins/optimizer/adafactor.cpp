// adafactor: keeps the squares of a matrix as means of its rows and columns, with the rule of torch.optim.Adafactor.
// Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, ICML 2018.
//   learning_rate = 0.01   step t has min(learning_rate, 1 / sqrt(t)). A schedule multiplies it
//   weight_decay = 0, beta2_decay = -0.8, eps1 = 0, eps2 = 0.001, clipping_threshold = 1, and those of fused_plugin.h
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
