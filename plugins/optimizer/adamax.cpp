// adamax: Adam that divides by the largest recent gradient, with the rule of torch.optim.Adamax.
// Source: Kingma and Ba, Adam, ICLR 2015, section 7.1.
//   learning_rate = 0.002, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, and those of fused_plugin.h
#include "fused_plugin.h"

struct AdamaxPlugin final : FusedPlugin<vernier::AdamaxOptions> {
  explicit AdamaxPlugin(vernier::Options& options)
      : FusedPlugin(options, {rate(), added_decay()}, {beta1(), beta2(), eps("added to the size of a gradient")}) {}
};

VERNIER_PLUGIN(AdamaxPlugin, "adamax", "1.0.0")
