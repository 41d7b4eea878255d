// gradient_noise: adds normal noise to every gradient, less and less of it. Its variance is eta / (1 + updates) ^
// gamma, where updates are those applied so far. It runs after unscaling; place it before or after clip_norm, as you
// want the noise clipped or not.
//   eta = 0.01       variance of the noise in the first update; the paper tries 0.01, 0.3 and 1
//   gamma = 0.55     how fast it decays; 0: not at all
// The noise is from a generator of its own, seeded by [run] seed, so dropout and data order do not change.
// Source: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks, 2015.
#include <ATen/ops/empty_like.h>
#include <vernier/random_state.h>
#include <vernier/sdk.h>

#include <cmath>

using vernier::Run;

class GradientNoise final : public vernier::Callback {
 public:
  explicit GradientNoise(vernier::Options& options)
      : eta_(options.get("eta", 0.01, "variance of the noise in the first update", vernier::above(0))),
        gamma_(options.get("gamma", 0.55, "how fast the variance decays; 0: not at all", vernier::at_least(0))) {
    remember("generator", generator_);
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "gradient_noise", .meaning = "standard deviation of the noise in the gradients"}};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::GradientsReady, [this](Run& run) { add_noise(run); });
  }

  void prepare(Run& run) override { generator_ = vernier::own_generator(run.seed, run.device); }

 private:
  void add_noise(Run& run) {
    const torch::NoGradGuard no_grad;
    const double deviation = std::sqrt(eta_ / std::pow(1 + static_cast<double>(run.updates), gamma_));
    run.metrics.set("gradient_noise", deviation);
    for (const auto& gradient : run.gradients()) {
      gradient.add_(at::empty_like(gradient).normal_(0, 1, generator_), deviation);
    }
  }

  double eta_, gamma_;
  at::Generator generator_;
};

VERNIER_PLUGIN(GradientNoise, "gradient_noise", "1.0.0")
