// radam: Adam that steps by its momentum alone until the mean of squares is certain, with the rule of
// torch.optim.RAdam. Source: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, ICLR 2020.
//   learning_rate = 0.001
//   weight_decay = 0    added to the gradient
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   decoupled_weight_decay = false   true: taken off the weights, as in AdamW
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.001, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

struct RAdamPlugin final : FusedPlugin<vernier::RAdamOptions> {
  explicit RAdamPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()}, {beta1(), beta2(), eps(), is_decoupled()}) {}
};

VERNIER_PLUGIN(RAdamPlugin, "radam", "1.0.0")
