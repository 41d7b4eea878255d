// lion: steps by the sign of a mean of gradients, in one fused pass, with the rule of the authors' lion_pytorch.py.
// Source: Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023. They advise a learning rate 3 to 10
// times smaller than AdamW's, and a weight decay as many times larger.
//   learning_rate = 0.0001
//   weight_decay = 0
//   beta1 = 0.9         share of the mean in the step
//   beta2 = 0.99        decay of the mean
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.0001, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

struct LionPlugin final : FusedPlugin<vernier::LionOptions> {
  explicit LionPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), taken_decay()},
                    {beta1("share of the mean in the step"), beta2("decay of the mean of gradients")}) {}
};

VERNIER_PLUGIN(LionPlugin, "lion", "1.0.0")
