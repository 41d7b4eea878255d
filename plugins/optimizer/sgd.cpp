// sgd: stochastic gradient descent with momentum (Sutskever et al., ICML 2013), in one fused pass, with the numbers of
// torch.optim.SGD(fused=True).
//   learning_rate = 0.01
//   weight_decay = 0    added to the gradient
//   momentum = 0, dampening = 0, nesterov = false
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.01, group.weight_decay = 0, group.momentum = 0   as above, for these parameters
#include "fused_plugin.h"

class SgdPlugin final : public FusedPlugin<vernier::SGDOptions> {
 public:
  explicit SgdPlugin(vernier::Options& options) : FusedPlugin(options, {.lr = 1e-2}, &read_both, &read_rest) {}

 private:
  static void read_both(vernier::Options& options, vernier::SGDOptions& settings) {
    read_rates(options, settings, "times the weight, added to the gradient");
    settings.momentum =
        options.get("momentum", settings.momentum, "share of the last step that is kept", vernier::at_least(0));
    if (settings.nesterov && settings.momentum == 0) options.refuse("momentum", "is needed by nesterov");
  }
  static void read_rest(vernier::Options& options, vernier::SGDOptions& settings) {
    settings.dampening = options.get("dampening", settings.dampening, "share of the gradient that momentum leaves out");
    settings.nesterov = options.get("nesterov", settings.nesterov, "look ahead along the momentum");
    if (settings.nesterov && (settings.momentum == 0 || settings.dampening != 0)) {
      options.refuse("nesterov", "needs a momentum and no dampening");
    }
  }
};

VERNIER_PLUGIN(SgdPlugin, "sgd", "1.2.0")
