// nadam: Adam with Nesterov's momentum, with the rule of torch.optim.NAdam.
// Source: Dozat, Incorporating Nesterov Momentum into Adam, ICLR 2016 workshop.
//   learning_rate = 0.002
//   weight_decay = 0    added to the gradient
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   momentum_decay = 0.004   the momentum of step t is beta1 * (1 - 0.96^(t * momentum_decay) / 2)
//   decoupled_weight_decay = false   true: taken off the weights, as in AdamW
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.002, group.weight_decay = 0   as above, for these parameters
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
