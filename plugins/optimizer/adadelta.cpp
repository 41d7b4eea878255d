// adadelta: steps of the size of earlier steps, with the rule of torch.optim.Adadelta. The learning rate multiplies
// them; the rule itself has none. Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701.
//   learning_rate = 1, weight_decay = 0, rho = 0.9, eps = 1e-6, and those of fused_plugin.h
#include "fused_plugin.h"

struct AdadeltaPlugin final : FusedPlugin<vernier::AdadeltaOptions> {
  explicit AdadeltaPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()},
                    {{"rho", &Settings::rho, "decay of the means of squares", vernier::between(0, 1)},
                     eps("added to the means of squares")}) {}
};

VERNIER_PLUGIN(AdadeltaPlugin, "adadelta", "1.0.0")
