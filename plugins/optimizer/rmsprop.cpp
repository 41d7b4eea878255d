// rmsprop: divides gradients by the root of their mean square, in one fused pass, with the rule of torch.optim.RMSprop.
// Sources: Tieleman and Hinton, Coursera lecture 6.5, 2012; for `centered`, Graves, arXiv:1308.0850.
//   learning_rate = 0.01
//   weight_decay = 0    added to the gradient
//   momentum = 0
//   alpha = 0.99, eps = 1e-8
//   centered = false    divides by the deviation instead of the root mean square
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01, group.weight_decay = 0, group.momentum = 0   as above, for these parameters
#include "fused_plugin.h"

struct RMSpropPlugin final : FusedPlugin<vernier::RMSpropOptions> {
  explicit RMSpropPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay(), momentum()},
                    {decay("alpha", &Settings::alpha, "decay of the mean of squares"),
                     eps(),
                     {"centered", &Settings::centered, "divide by the deviation instead"}}) {}
};

VERNIER_PLUGIN(RMSpropPlugin, "rmsprop", "1.0.0")
