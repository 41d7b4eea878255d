// lamb: Adam whose step of each tensor is scaled to the norm of its weights, for large batches.
// Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020, algorithm 2.
//   learning_rate = 0.001
//   weight_decay = 0.01
//   trust_ratio = true  false: steps are not scaled. The authors' code does so for biases and norms, without decay
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-6
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.001, group.weight_decay = 0.01, group.trust_ratio = true   as above, for these parameters
#include "fused_plugin.h"

struct LambPlugin final : FusedPlugin<vernier::LambOptions> {
  explicit LambPlugin(vernier::Options& options)
      : FusedPlugin(options,
                    {rate(),
                     weight_decay("times the weight, added to the step before it is scaled"),
                     {"trust_ratio", &Settings::trust_ratio, "scale the step of a tensor to the norm of its weights"}},
                    {beta1(), beta2(), eps()}) {}
};

VERNIER_PLUGIN(LambPlugin, "lamb", "1.0.0")
