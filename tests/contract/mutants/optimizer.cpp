// Momentum in float64, with an average of the weights that is taken up each `every` steps.
#include <ATen/ops/zeros_like.h>
#include <cmath>
#include <random>

#include "mutant.h"

namespace {

using torch::Tensor;

class Optimizer final : public vernier::Optimizer {
 public:
  explicit Optimizer(vernier::Options& options)
      : mutant_(options), rate_(options.get("learning_rate", 0.05, "step along the momentum", vernier::above(0))) {}
  bool updates_each_alone() const override { return true; }
  bool divides_gradients() const override { return mutant_.is("divides_nothing"); }

  void step(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    momenta_.resize(run.parameters.size());
    slow_.resize(run.parameters.size());
    const bool is_skipped = run.skip_update.defined() && run.skip_update.item<double>() != 0;
    if (mutant_.is("counts_skipped")) steps_ += 1;
    if (is_skipped && !mutant_.is("updates_skipped")) return;
    if (!mutant_.is("counts_skipped")) steps_ += 1;
    double norm = 0;
    for (const auto& each : run.parameters) {
      if (each.master.grad().defined()) norm += each.master.grad().square().sum().item<double>();
    }
    for (std::size_t i = 0; i < run.parameters.size(); ++i) update(run, i, std::sqrt(norm));
  }
  vernier::State save() const override {
    vernier::State state;
    if (!mutant_.is("forgets_count")) state.put("steps", steps_);
    if (mutant_.is("clock")) state.put("steps", static_cast<double>(steps_) + 0.5);
    for (std::size_t i = 0; i < momenta_.size(); ++i) {
      const auto name = std::to_string(i);
      if (momenta_[i].defined() && !mutant_.is("forgets_momentum") && !(mutant_.is("forgets_last") && i == 0)) {
        state.put("momentum/" + name, mutant_.is("saves_float32") ? momenta_[i].to(torch::kFloat) : momenta_[i]);
      }
      if (slow_[i].defined() && !mutant_.is("forgets_average")) state.put("slow/" + name, slow_[i]);
    }
    return state;
  }
  void load(const vernier::State& state) override {
    if (state.has("steps")) steps_ = state.integer("steps");
    const auto take = [&](const std::string& prefix, std::vector<Tensor>& into) {
      for (const auto& [name, tensor] : state.part(prefix).tensors) {
        const auto i = static_cast<std::size_t>(std::stoi(name));
        if (into.size() <= i) into.resize(i + 1);
        into[i] = tensor.to(torch::kDouble, false, /*copy=*/true);
      }
    };
    take("momentum", momenta_);
    take("slow", slow_);
    if (mutant_.is("loads_swapped") && momenta_.size() > 1) momenta_[0] = torch::zeros_like(momenta_[0]);
    const auto size = std::max(momenta_.size(), slow_.size());
    momenta_.resize(size);
    slow_.resize(size);
  }

 private:
  void update(const vernier::Run& run, std::size_t i, double norm) {
    const auto& [name, model, master, frozen, owned] = run.parameters[i];
    if (mutant_.is("leaves_out") && i == 1) return;
    if (mutant_.is("leaves_out_vectors") && master.dim() == 1) return;
    if (mutant_.is("stops") && steps_ > 8) return;
    if (!master.grad().defined()) {
      if (mutant_.is("decays_all")) master.mul_(0.999);
      return;
    }
    auto gradient = master.grad().to(torch::kDouble);
    if (mutant_.is("norm_of_all")) gradient = gradient / (1 + norm);
    auto& momentum = momenta_[i];
    momentum = momentum.defined() ? momentum * 0.9 + gradient : gradient.clone();
    if (mutant_.is("overwrites_momentum")) momentum = gradient.clone();
    const double factor = mutant_.is("ignores_rate") ? 1 : run.learning_rate_factor;
    const double warm = steps_ == 1 ? 0.5 : 1;
    double sign = mutant_.is("ascends") || (mutant_.is("ascends_in_one") && i == 2) ? -1 : 1;
    if (mutant_.is("draws")) sign = std::uniform_real_distribution<>(0.5, 1)(random_);
    const auto change = (momentum * (sign * rate_ * warm * factor)).to(master.scalar_type());
    (mutant_.is("writes_model") ? model : master)
        .sub_(change.to((mutant_.is("writes_model") ? model : master).scalar_type()));
    take_average(master, slow_[i]);
  }
  // After each fiftieth step the weights go half of the way back to where they were then.
  void take_average(const Tensor& master, Tensor& slow) const {
    if (!slow.defined()) slow = master.to(torch::kDouble).clone();
    if (steps_ % 50 != 0) return;
    slow = (slow + master.to(torch::kDouble)) / 2;
    master.copy_(slow);
  }

  Mutant mutant_;
  double rate_;
  std::int64_t steps_ = 0;
  std::vector<Tensor> momenta_, slow_;
  std::mt19937 random_{std::random_device()()};
};

}  // namespace

VERNIER_PLUGIN(Optimizer, "mutant", "1.0.0")
