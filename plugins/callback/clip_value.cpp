// clip_value: limits every element of the gradients to an interval around 0. It runs after unscaling.
//   max_value = 1.0
// Source: torch.nn.utils.clip_grad_value_.
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/sdk.h>

class ClipValue final : public vernier::Callback, public vernier::draft::TakesParts {
 public:
  explicit ClipValue(vernier::Options& options)
      : max_value_(options.get("max_value", 1.0, "largest size of an element", vernier::above(0))) {}

  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::GradientsReady, [this](vernier::Run& run) {
      const torch::NoGradGuard no_grad;
      auto gradients = run.gradients();
      std::erase_if(gradients, vernier::draft::is_elsewhere);
      if (gradients.empty()) return;
      at::_foreach_clamp_min_(gradients, -max_value_);
      at::_foreach_clamp_max_(gradients, max_value_);
    });
  }

 private:
  double max_value_;
};

VERNIER_PLUGIN(ClipValue, "clip_value", "1.0.0")
