// The rule of torch.amp.GradScaler, with a scale of its own that is not a power of two.
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <vernier/unscale.h>

#include "mutant.h"

namespace {

class Scaler final : public vernier::Scaler {
 public:
  explicit Scaler(vernier::Options& options)
      : mutant_(options),
        interval_(options.get("growth_interval", 2000, "steps until the scale grows", vernier::at_least(1))) {}
  bool scales() const override { return true; }
  torch::Tensor scale(const torch::Tensor& loss) override {
    if (mutant_.is("doubles")) scale_ *= 2;
    return loss * scale_;
  }
  void unscale(vernier::Run& run) override {
    const auto all = torch::full({}, mutant_.is("divides_wrongly") ? scale_ * 2 : scale_, torch::kFloat);
    if (mutant_.is("keeps")) {
      run.found_inf = torch::full({}, 0.0, torch::kFloat);
    } else {
      vernier::unscale(run, all);
    }
    if (mutant_.is("sees_nothing")) run.found_inf = torch::full({}, 0.0, torch::kFloat);
    if (mutant_.is("sees_all")) run.found_inf = torch::full({}, 1.0, torch::kFloat);
    if (mutant_.is("draws")) (void)torch::rand({});
  }
  void update(vernier::Run& run) override {
    if (run.found_inf.item<double>() != 0) {
      scale_ /= 3;
      good_ = 0;
    } else if (++good_ == interval_) {
      scale_ *= 2;
      good_ = 0;
    }
  }
  Current current() const override {
    if (mutant_.is("hides") || mutant_.is("forgets_growth_silently")) return {};
    return {torch::full({}, scale_, torch::kFloat), torch::full({}, good_, torch::kInt)};
  }
  vernier::State save() const override {
    vernier::State state;
    if (mutant_.is("saves_float32")) {
      state.put("scale", torch::full({}, scale_, torch::kFloat));
    } else if (!mutant_.is("forgets_scale") && !mutant_.is("hides")) {
      state.put("scale", scale_);
    }
    if (!mutant_.is("forgets_growth") && !mutant_.is("forgets_growth_silently")) state.put("good", good_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (mutant_.is("saves_float32")) {
      scale_ = state.tensor("scale").item<double>();
    } else if (state.has("scale")) {
      scale_ = state.real("scale");
    }
    if (state.has("good")) good_ = state.integer("good") + (mutant_.is("loads_wrongly") ? 1 : 0);
  }

 private:
  Mutant mutant_;
  std::int64_t interval_, good_ = 0;
  double scale_ = 1024;
};

}  // namespace

VERNIER_PLUGIN(Scaler, "mutant", "1.0.0")
