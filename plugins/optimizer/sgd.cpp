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
