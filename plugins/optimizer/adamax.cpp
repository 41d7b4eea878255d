// adamax: Adam that divides by the largest recent gradient, with the rule of torch.optim.Adamax.
// Source: Kingma and Ba, Adam, ICLR 2015, section 7.1.
//   learning_rate = 0.002
//   weight_decay = 0    added to the gradient
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.002, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

struct AdamaxPlugin final : FusedPlugin<vernier::AdamaxOptions> {
  explicit AdamaxPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()}, {beta1(), beta2(), eps("added to the size of a gradient")}) {}
};

VERNIER_PLUGIN(AdamaxPlugin, "adamax", "1.0.0")
