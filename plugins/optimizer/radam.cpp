// radam: Adam that steps by its momentum alone until the mean of squares is certain, with the rule of
// torch.optim.RAdam. Source: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, ICLR 2020.
//   learning_rate = 0.001, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decoupled_weight_decay = false,
//   and those of fused_plugin.h
#include "fused_plugin.h"

struct RAdamPlugin final : FusedPlugin<vernier::RAdamOptions> {
  explicit RAdamPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()}, {beta1(), beta2(), eps(), is_decoupled()}) {}
};

VERNIER_PLUGIN(RAdamPlugin, "radam", "1.0.0")
