// my_name: stochastic gradient descent with momentum, written by hand.
// Source: Sutskever et al., ICML 2013, as in torch.optim.SGD.
//   learning_rate = 0.01
//   momentum = 0.9   share of the last change that is kept
//   layer_decay = 1.0, group = []   see vernier/rule_optimizer.h
//
// This file is a complete plugin. Replace its rule with your own.
#include <vernier/rule_optimizer.h>
#include <vernier/sdk.h>

class MyName final : public vernier::RuleOptimizer {
 public:
  // Reads the options and does nothing else. `vernier plugins optimizer/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : RuleOptimizer(options, /*learning_rate=*/0.01,
                      {{"momentum", 0.9, "share of the last change that is kept", vernier::between(0, 1)}}) {}

 private:
  // The update of one weight. The base class keeps and saves what slot() returns, and puts it and the weight back if
  // the update is skipped. The tensors stay on their device: an item() would make the host wait for it.
  void update(Update& p) override {
    auto& momentum = p.slot("momentum_buffer");
    momentum.mul_(p.option("momentum")).add_(p.grad);
    p.weight.sub_(p.lr * momentum);
  }
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
