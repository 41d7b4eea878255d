// nadam: Adam with Nesterov's momentum, with the rule of torch.optim.NAdam.
// Source: Dozat, Incorporating Nesterov Momentum into Adam, ICLR 2016 workshop.
//   learning_rate = 0.002
//   weight_decay = 0    added to the gradient
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   momentum_decay = 0.004   the momentum of step t is beta1 * (1 - 0.96^(t * momentum_decay) / 2)
//   decoupled_weight_decay = false   true: taken off the weights, as in AdamW
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []          [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.002, group.weight_decay = 0   as above, for these parameters
#include "fused_plugin.h"

class NAdamPlugin final : public FusedPlugin<vernier::NAdamOptions> {
 public:
  explicit NAdamPlugin(vernier::Options& options) : FusedPlugin(options, {}, &read_both, &read_rest) {}

 private:
  static void read_both(vernier::Options& options, vernier::NAdamOptions& settings) {
    read_rates(options, settings, "times the weight, added to the gradient");
  }
  static void read_rest(vernier::Options& options, vernier::NAdamOptions& settings) {
    read_means(options, settings);
    settings.momentum_decay = options.get("momentum_decay", settings.momentum_decay,
                                          "how fast the momentum rises to beta1", vernier::at_least(0));
    settings.decoupled_weight_decay = read_decoupled(options);
  }
};

VERNIER_PLUGIN(NAdamPlugin, "nadam", "1.0.0")
