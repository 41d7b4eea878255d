// sam: sharpness-aware minimisation. The gradient of each update is taken at the weights plus rho along the gradient,
// where the loss around the weights is about the highest, so flat minima are preferred. Each update costs a second
// forward and backward pass, and a copy of the weights. The loss reported is that of the first pass; the second's is
// the metric `perturbed_loss`.
//   rho = 0.05           length of the step to where the gradient is taken
//   adaptive = false     ASAM: the step of each weight is scaled by its size; rho is then about ten times as large
// Place it before other callbacks that change gradients, such as clip_norm, and after flight_recorder. Buffers, such as
// the statistics of batch normalization, are those of the first pass. Dropout draws anew in the second one.
// Sources: Foret et al., ICLR 2021; Kwon et al., ASAM, ICML 2021. The rule is that of the authors' common
// implementation in PyTorch, with 1e-12 added to the norm.
#include <ATen/ops/stack.h>
#include <vernier/sdk.h>

#include "average.h"

using vernier::Run;

class Sam final : public vernier::Callback {
 public:
  explicit Sam(vernier::Options& options)
      : rho_(options.get("rho", 0.05, "length of the step to where the gradient is taken", vernier::above(0))),
        adaptive_(options.get("adaptive", false, "the step of each weight is scaled by its size")) {}

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "perturbed_loss", .meaning = "training loss at the weights a little uphill"}};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::GradientsReady, [this](Run& run) { take_gradients_nearby(run); });
  }

  void prepare(Run& run) override {
    refuse_masters_of_other_ranks(run, id());
    for (const auto& parameter : run.parameters) {
      if (parameter.best().is_same(parameter.master)) continue;
      vernier::refuse(
          "callback/sam moves the weights and back within a step, and with stochastic or Kahan rounding the "
          "optimizer's "
          "weights do not outlive a pass; choose another `rounding` or `level` of the precision");
    }
  }

 private:
  void take_gradients_nearby(Run& run) {
    run.gradients();  // divides them by the scale
    run.metrics.set("perturbed_loss", run.control->recompute_at([&] { move(run); }));
  }

  // To where the loss is higher. The norm stays on the device.
  void move(const Run& run) const {
    std::vector<torch::Tensor> norms;
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (!gradient.defined()) continue;
      norms.push_back((adaptive_ ? parameter.master.detach().abs() * gradient : gradient).norm());
    }
    if (norms.empty()) return;
    const auto scale = rho_ / (at::stack(norms).norm() + 1e-12);
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (!gradient.defined()) continue;
      auto weight = parameter.master.detach();
      weight.add_(adaptive_ ? weight.square() * gradient * scale : gradient * scale);
    }
  }

  double rho_;
  bool adaptive_;
};

VERNIER_PLUGIN(Sam, "sam", "1.0.0")
