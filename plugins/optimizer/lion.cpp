// lion: steps by the sign of a mean of gradients, in one fused pass, with the rule of the authors' lion_pytorch.py.
// Source: Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023. They advise a learning rate 3 to 10
// times smaller than AdamW's, and a weight decay as many times larger.
//   learning_rate = 0.0001, weight_decay = 0, beta1 = 0.9, beta2 = 0.99, and those of fused_plugin.h
#include "fused_plugin.h"

struct LionPlugin final : FusedPlugin<vernier::LionOptions> {
  explicit LionPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), taken_decay()},
                    {beta1("share of the mean in the step"), beta2("decay of the mean of gradients")}) {}
};

VERNIER_PLUGIN(LionPlugin, "lion", "1.0.0")
