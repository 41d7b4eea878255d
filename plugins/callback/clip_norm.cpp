// clip_norm: scales all gradients down if their common norm is above a limit. It runs after unscaling. The norm before
// clipping is the metric "grad_norm"; it stays on the device. If the order is 2, float32 gradients
// are not changed here. The factor goes into run.grad_scale, and the optimizer divides by it in its own pass.
//   max_norm = 1.0
//   norm_type = 2.0   the order p of the norm; inf for the largest element
// Sources: Pascanu et al., ICML 2013; torch.nn.utils.clip_grad_norm_.
#include <vernier/draft/gradient_parts.h>
#include <vernier/grad_norm.h>
#include <vernier/sdk.h>

class ClipNorm final : public vernier::Callback, public vernier::draft::TakesParts {
 public:
  explicit ClipNorm(vernier::Options& options)
      : max_norm_(
            options.get("max_norm", 1.0, "norm of all gradients together that is let through", vernier::above(0))),
        norm_type_(options.get("norm_type", 2.0, "order of the norm; inf for the largest element", vernier::above(0))) {
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "grad_norm", .meaning = c10::str(norm_type_, "-norm of all gradients before clipping")}};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::GradientsReady, [this](vernier::Run& run) { run.metrics.set("grad_norm", clip(run)); });
  }

 private:
  torch::Tensor clip(vernier::Run& run) const {
    // A loss scale that has grown to the end of float32 has no room for the factor.
    const bool is_huge =
        run.device.is_cpu() && run.grad_scale.defined() && *run.grad_scale.const_data_ptr<float>() > 1e30F;
    if (norm_type_ != 2 || is_huge) return vernier::clip_grad_norm_(run.gradients(), max_norm_, norm_type_);
    if (!run.norms.all.defined()) {
      const auto gradients = run.gradients();
      if (gradients.empty() || !vernier::can_inspect(gradients)) return vernier::clip_grad_norm_(gradients, max_norm_);
      run.norms.all = vernier::inspect_gradients(gradients).norm;
    }
    const auto norm = run.gradient_norm();
    run.grad_scale = vernier::clip_scale(run.norms.all, max_norm_, run.grad_scale).grad_scale;
    return norm;
  }

  double max_norm_, norm_type_;
};

VERNIER_PLUGIN(ClipNorm, "clip_norm", "1.0.0")
