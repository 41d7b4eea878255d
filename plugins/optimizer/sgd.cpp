// sgd: stochastic gradient descent with momentum (Sutskever et al., ICML 2013), in one fused pass, with the numbers of
// torch.optim.SGD(fused=True).
//   learning_rate = 0.01
//   weight_decay = 0    added to the gradient
//   momentum = 0, dampening = 0, nesterov = false
//   in_backward = false   see fused_plugin.h
//   group = []   see parameter_groups.h; a group may set learning_rate, weight_decay and momentum
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
