// Any optimizer of LibTorch, or one written like them, as the plugin of the role optimizer.
//
//   trainer.use(std::make_unique<vernier::TorchOptimizer>([](const std::vector<torch::Tensor>& weights) {
//     return std::make_unique<torch::optim::Adagrad>(weights, torch::optim::AdagradOptions(0.01));
//   }));
#pragma once

#include <vernier/roles.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace vernier {

// Its learning rates are those of its groups times run.learning_rate_factor. Where an update is skipped, the host reads
// run.skip_update, and on a GPU waits for it; Vernier's own optimizers do not. Torch's LBFGS gets the closure that it
// needs. Main thread only.
class VERNIER_API TorchOptimizer : public Optimizer {
 public:
  // make: called in prepare with run.parameters' masters, in their order; all of them must be in its groups.
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>& weights)>;
  explicit TorchOptimizer(Make make);
  ~TorchOptimizer() override;

  void prepare(Run& run) override;
  void step(Run& run) override;
  State save() const override;
  void load(const State& state) override;

 private:
  Make make_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<double> rates_;  // learning rates of the groups, without the factor
};

}  // namespace vernier
