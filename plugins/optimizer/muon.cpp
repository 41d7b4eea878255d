// muon: momentum made nearly orthogonal, for the matrices of hidden layers, with the rule of torch.optim.Muon; AdamW
// for parameters that have not two dimensions, and for groups with `adamw = true`. Put embeddings and the last layer
// there. Sources: Jordan et al., Muon, kellerjordan.github.io/posts/muon, 2024; for match_rms_adamw, Liu et al.,
// arXiv:2502.16982.
//   learning_rate = 0.001
//   weight_decay = 0.1    taken off the weights, times the learning rate; also with AdamW
//   momentum = 0.95, nesterov = true
//   ns_steps = 5          Newton-Schulz iterations, in bfloat16
//   eps = 1e-7            least norm of a matrix
//   rate = "original"     the learning rate is multiplied by sqrt(max(1, rows / columns)); match_rms_adamw: by 0.2
//                         sqrt(max(rows, columns)), so that a learning rate and weight decay of AdamW fit
//   adamw = false         true: AdamW for all parameters
//   adamw_learning_rate = 0.0003, adamw_beta1 = 0.9, adamw_beta2 = 0.95, adamw_eps = 1e-10
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []            [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.001, group.weight_decay = 0.1, group.adamw = false,
//     group.adamw_learning_rate = 0.0003   as above, for these parameters; where AdamW updates all of them,
//                                              learning_rate alone is that of AdamW
#include "fused_plugin.h"

class MuonPlugin final : public FusedPlugin<vernier::MuonOptions> {
 public:
  explicit MuonPlugin(vernier::Options& options) : FusedPlugin(options, {}, &read_both, &read_rest) {}

 private:
  static void read_both(vernier::Options& options, vernier::MuonOptions& settings) {
    settings.lr = options.get("learning_rate", settings.lr, "step size, before schedules", vernier::above(0));
    settings.weight_decay = options.get("weight_decay", settings.weight_decay,
                                        "share taken off a weight, times the learning rate", vernier::at_least(0));
    settings.adamw = options.get("adamw", settings.adamw, "AdamW updates matrices too");
    settings.adamw_lr = options.get("adamw_learning_rate", settings.adamw_lr, "AdamW's step size, before schedules",
                                    vernier::at_least(0));
  }
  static void read_rest(vernier::Options& options, vernier::MuonOptions& settings) {
    settings.momentum =
        options.get("momentum", settings.momentum, "decay of the mean of gradients", vernier::between(0, 1));
    settings.nesterov = options.get("nesterov", settings.nesterov, "look ahead along the momentum");
    settings.ns_steps = options.get("ns_steps", settings.ns_steps, "Newton-Schulz iterations", vernier::between(1, 99));
    settings.eps = options.get("eps", settings.eps, "least norm of a matrix", vernier::at_least(0));
    const auto rate = options.choose("rate", "original", {"original", "match_rms_adamw"},
                                     "what multiplies the learning rate of a matrix");
    if (rate == "match_rms_adamw") settings.rate = vernier::MuonRate::match_rms_adamw;
    settings.adamw_beta1 =
        read_decay(options, "adamw_beta1", settings.adamw_beta1, "decay of AdamW's mean of gradients");
    settings.adamw_beta2 = read_decay(options, "adamw_beta2", settings.adamw_beta2, "decay of AdamW's mean of squares");
    settings.adamw_eps = options.get("adamw_eps", settings.adamw_eps, "added to the root of AdamW's mean of squares",
                                     vernier::at_least(0));
  }
  // A group of biases has only parameters of AdamW, and says learning_rate.
  void finish(vernier::ParameterGroup<vernier::MuonOptions>& group, const vernier::Run& run) const override {
    auto& own = group.options;
    const bool has_matrix =
        !own.adamw && std::ranges::any_of(group.parameters, [](const auto& p) { return p.dim() == 2; });
    if (!has_matrix && own.lr != settings().lr && own.adamw_lr == settings().adamw_lr) own.adamw_lr = own.lr;
    refuse_small_eps(own.adamw_eps, run);
  }
};

VERNIER_PLUGIN(MuonPlugin, "muon", "1.0.0")
