// sgd: stochastic gradient descent with momentum (Sutskever et al., ICML 2013), in one fused pass, with the numbers of
// torch.optim.SGD(fused=True).
//   learning_rate = 0.01, weight_decay = 0, momentum = 0, dampening = 0, nesterov = false, and those of fused_plugin.h
#include "fused_plugin.h"

class SgdPlugin final : public FusedPlugin<vernier::SGDOptions> {
 public:
  explicit SgdPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay(), momentum()},
                    {{"dampening", &Settings::dampening, "share of the gradient that momentum leaves out"},
                     {"nesterov", &Settings::nesterov, "look ahead along the momentum"}},
                    &refuse_contradictions, {.lr = 1e-2}) {}

 private:
  static void refuse_contradictions(vernier::Options& options, Settings& settings, bool is_group) {
    if (!settings.nesterov || (settings.momentum != 0 && settings.dampening == 0)) return;
    if (is_group) options.refuse("momentum", "is needed by nesterov");
    options.refuse("nesterov", "needs a momentum and no dampening");
  }
};

VERNIER_PLUGIN(SgdPlugin, "sgd", "1.2.0")
