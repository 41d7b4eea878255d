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
  explicit MuonPlugin(vernier::Options& options)
      : FusedPlugin(
            options,
            {rate("step size, before schedules", vernier::above(0)),
             taken_decay(),
             {"adamw", &Settings::adamw, "AdamW updates matrices too"},
             {"adamw_learning_rate", &Settings::adamw_lr, "AdamW's step size, before schedules", vernier::at_least(0)}},
            {{"momentum", &Settings::momentum, "decay of the mean of gradients", vernier::between(0, 1)},
             {"nesterov", &Settings::nesterov, "look ahead along the momentum"},
             {"ns_steps", &Settings::ns_steps, "Newton-Schulz iterations", vernier::between(1, 99)},
             eps("least norm of a matrix"),
             decay("adamw_beta1", &Settings::adamw_beta1, "decay of AdamW's mean of gradients"),
             decay("adamw_beta2", &Settings::adamw_beta2, "decay of AdamW's mean of squares"),
             {"adamw_eps", &Settings::adamw_eps, "added to the root of AdamW's mean of squares", vernier::at_least(0)}},
            &read_rate) {}

 private:
  static void read_rate(vernier::Options& options, Settings& settings, bool is_group) {
    if (is_group) return;
    const auto rate = options.choose("rate", "original", {"original", "match_rms_adamw"},
                                     "what multiplies the learning rate of a matrix");
    if (rate == "match_rms_adamw") settings.rate = vernier::MuonRate::match_rms_adamw;
  }
  // A group of biases has only parameters of AdamW, and says learning_rate.
  void finish(vernier::ParameterGroup<Settings>& group, const vernier::Run& run) const override {
    auto& own = group.options;
    const bool has_matrix =
        !own.adamw && std::ranges::any_of(group.parameters, [](const auto& p) { return p.dim() == 2; });
    if (!has_matrix && own.lr != settings().lr && own.adamw_lr == settings().adamw_lr) own.adamw_lr = own.lr;
    refuse_small_eps(own.adamw_eps, run);
  }
};

VERNIER_PLUGIN(MuonPlugin, "muon", "1.0.0")
