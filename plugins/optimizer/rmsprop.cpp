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

class RMSpropPlugin final : public FusedPlugin<vernier::RMSpropOptions> {
 public:
  explicit RMSpropPlugin(vernier::Options& options) : FusedPlugin(options, {}, &read_both, &read_rest) {}

 private:
  static void read_both(vernier::Options& options, vernier::RMSpropOptions& settings) {
    read_rates(options, settings, "times the weight, added to the gradient");
    settings.momentum =
        options.get("momentum", settings.momentum, "share of the last step that is kept", vernier::at_least(0));
  }
  static void read_rest(vernier::Options& options, vernier::RMSpropOptions& settings) {
    settings.alpha = read_decay(options, "alpha", settings.alpha, "decay of the mean of squares");
    settings.eps = options.get("eps", settings.eps, "added to the root of the mean of squares", vernier::at_least(0));
    settings.centered = options.get("centered", settings.centered, "divide by the deviation instead");
  }
};

VERNIER_PLUGIN(RMSpropPlugin, "rmsprop", "1.0.0")
