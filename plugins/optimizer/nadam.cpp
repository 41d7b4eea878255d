// nadam: Adam with Nesterov's momentum, with the rule of torch.optim.NAdam. The momentum of step t is
// beta1 * (1 - 0.96^(t * momentum_decay) / 2).
// Source: Dozat, Incorporating Nesterov Momentum into Adam, ICLR 2016 workshop.
//   learning_rate = 0.002, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum_decay = 0.004,
//   decoupled_weight_decay = false, and those of fused_plugin.h
#include "fused_plugin.h"

struct NAdamPlugin final : FusedPlugin<vernier::NAdamOptions> {
  explicit NAdamPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()},
                    {beta1(),
                     beta2(),
                     eps(),
                     {"momentum_decay", &Settings::momentum_decay, "how fast the momentum rises to beta1",
                      vernier::at_least(0)},
                     is_decoupled()}) {}
};

VERNIER_PLUGIN(NAdamPlugin, "nadam", "1.0.0")
