// my_name: stochastic gradient descent with momentum, written by hand.
// Source: Sutskever et al., ICML 2013, as in torch.optim.SGD.
//   learning_rate = 0.01
//   momentum = 0.9   share of the last change that is kept
//
// This file is a complete plugin. Replace its rule with your own.
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <vernier/sdk.h>

class MyName final : public vernier::Optimizer {
 public:
  // Reads the options and does nothing else. `vernier plugins optimizer/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : learning_rate_(options.get("learning_rate", 0.01, "step size, before schedules", vernier::at_least(0))),
        momentum_(options.get("momentum", 0.9, "share of the last change that is kept", vernier::between(0, 1))) {}

  // Called once, when the weights are known. Throw vernier::Error here if something cannot work.
  void prepare(vernier::Run& run) override {
    for (const auto& weight : run.parameters) momenta_[weight.name] = at::zeros_like(weight.master);
  }

  // The update. A skipped one changes neither weights nor momenta. That is decided on the device, because an item()
  // would make the host wait for it.
  void step(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    const double rate = learning_rate_ * run.learning_rate_factor;  // callbacks set the factor
    run.metrics.set("learning_rate", rate);
    for (const auto& weight : run.parameters) {
      if (!weight.master.grad().defined()) continue;
      auto& momentum = momenta_[weight.name];
      const auto next = momentum * momentum_ + weight.master.grad();
      weight.master.copy_(unless_skipped(run, weight.master - rate * next, weight.master));
      momentum.copy_(unless_skipped(run, next, momentum));
    }
  }

  // The memory on which the next steps depend. With it a resumed run equals one that was never stopped, bit for bit.
  vernier::State save() const override {
    vernier::State state;
    for (const auto& [name, momentum] : momenta_) state.put(name + "/momentum_buffer", momentum);
    return state;
  }
  void load(const vernier::State& state) override {
    for (auto& [name, momentum] : momenta_) momentum.copy_(state.tensor(name + "/momentum_buffer"));
  }

 private:
  static torch::Tensor unless_skipped(const vernier::Run& run, const torch::Tensor& next, const torch::Tensor& now) {
    return run.skip_update.defined() ? at::where(run.skip_update.eq(0), next, now) : next;
  }

  double learning_rate_, momentum_;
  std::map<std::string, torch::Tensor> momenta_;  // by the name of the parameter
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
