// rmsprop: divides gradients by the root of their mean square, in one fused pass, with the rule of torch.optim.RMSprop.
// Sources: Tieleman and Hinton, Coursera lecture 6.5, 2012; for `centered`, Graves, arXiv:1308.0850.
//   learning_rate = 0.01, weight_decay = 0, momentum = 0, alpha = 0.99, eps = 1e-8, centered = false, and those of
//   fused_plugin.h
#include "fused_plugin.h"

struct RMSpropPlugin final : FusedPlugin<vernier::RMSpropOptions> {
  explicit RMSpropPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay(), momentum()},
                    {decay("alpha", &Settings::alpha, "decay of the mean of squares"),
                     eps(),
                     {"centered", &Settings::centered, "divide by the deviation instead"}}) {}
};

VERNIER_PLUGIN(RMSpropPlugin, "rmsprop", "1.0.0")
