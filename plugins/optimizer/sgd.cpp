// sgd: stochastic gradient descent with momentum (Sutskever et al., ICML 2013), one fused pass, the numbers of
// torch.optim.SGD(fused=True).
//   learning_rate = 0.01
//   momentum = 0, dampening = 0, nesterov = false
//   weight_decay = 0    added to the gradient
//   in_backward = false   use and free each gradient in backward
#include <vernier/sdk.h>

#include "in_backward.h"

class SgdPlugin final : public vernier::Optimizer {
 public:
  explicit SgdPlugin(vernier::Options& options)
      : options_{.lr = options.get("learning_rate", 1e-2, "step size, before schedules", vernier::at_least(0)),
                 .momentum = options.get("momentum", 0.0, "share of the last step that is kept", vernier::at_least(0)),
                 .dampening = options.get("dampening", 0.0, "share of the gradient that momentum leaves out"),
                 .weight_decay =
                     options.get("weight_decay", 0.0, "times the weight, added to the gradient", vernier::at_least(0)),
                 .nesterov = options.get("nesterov", false, "look ahead along the momentum")},
        in_backward_(options) {
    if (options_.nesterov && (options_.momentum == 0 || options_.dampening != 0)) {
      options.refuse("nesterov", "needs a momentum and no dampening");
    }
  }

  void attach(vernier::Bus& bus) override {
    in_backward_.attach(bus, [this](vernier::Run& run, bool updates) {
      set_rate(run);
      optimizer_->step_in_backward(updates);
    });
  }

  void prepare(vernier::Run& run) override {
    in_backward_.prepare(run, "sgd");
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : run.parameters) parameters.push_back(parameter.owned);
    optimizer_ = std::make_unique<vernier::SGD>(std::move(parameters), options_);
  }

  void step(vernier::Run& run) override {
    set_rate(run);
    if (in_backward_.is_on()) {
      optimizer_->step_in_backward(false);
      optimizer_->step();  // what the last piece did not reach
      return optimizer_->zero_grad();
    }
    optimizer_->step(run.found_inf, run.grad_scale);
  }
  bool divides_gradients() const override { return true; }
  bool steps_in_backward() const override { return in_backward_.is_on(); }

  vernier::State save() const override { return optimizer_->state(); }
  void load(const vernier::State& state) override { optimizer_->load(state); }

 private:
  void set_rate(vernier::Run& run) {
    const double rate = options_.lr * run.learning_rate_factor;
    optimizer_->set_lr(rate);
    run.metrics.set("learning_rate", rate);
  }

  vernier::SGDOptions options_;
  InBackward in_backward_;
  std::unique_ptr<vernier::SGD> optimizer_;
};

VERNIER_PLUGIN(SgdPlugin, "sgd", "1.1.0")
