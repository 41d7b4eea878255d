// sgd: stochastic gradient descent with momentum (Sutskever et al., ICML 2013), in one fused pass, with the numbers of
// torch.optim.SGD(fused=True).
//   learning_rate = 0.01
//   momentum = 0, dampening = 0, nesterov = false
//   weight_decay = 0    added to the gradient
//   in_backward = false   uses and frees each gradient in backward
#include <vernier/sdk.h>

#include "fused_step.h"

class SgdPlugin final : public vernier::Optimizer {
 public:
  explicit SgdPlugin(vernier::Options& options)
      : options_{.lr = options.get("learning_rate", 1e-2, "step size, before schedules", vernier::at_least(0)),
                 .momentum = options.get("momentum", 0.0, "share of the last step that is kept", vernier::at_least(0)),
                 .dampening = options.get("dampening", 0.0, "share of the gradient that momentum leaves out"),
                 .weight_decay =
                     options.get("weight_decay", 0.0, "times the weight, added to the gradient", vernier::at_least(0)),
                 .nesterov = options.get("nesterov", false, "look ahead along the momentum")},
        fused_(options, options_.lr) {
    if (options_.nesterov && (options_.momentum == 0 || options_.dampening != 0)) {
      options.refuse("nesterov", "needs a momentum and no dampening");
    }
  }

  void attach(vernier::Bus& bus) override { fused_.attach(bus); }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    return fused_.contradiction(other, bus);
  }
  void prepare(vernier::Run& run) override {
    fused_.refuse_masters(run, "sgd");
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : run.parameters) parameters.push_back(parameter.master);
    fused_.start(std::make_unique<vernier::SGD>(std::move(parameters), options_));
  }

  void step(vernier::Run& run) override { fused_.step(run); }
  bool divides_gradients() const override { return true; }
  bool steps_in_backward() const override { return fused_.is_in_backward(); }

  vernier::State save() const override { return fused_.optimizer().state_dict(); }
  void load(const vernier::State& state) override { fused_.optimizer().load_state_dict(state); }

 private:
  vernier::SGDOptions options_;
  FusedStep fused_;
};

VERNIER_PLUGIN(SgdPlugin, "sgd", "1.1.0")
