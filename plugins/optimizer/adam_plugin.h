// Shared by optimizer/adam and optimizer/adamw: all but weight_decay and the rule.
//   learning_rate = 0.001, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, amsgrad = false, and those of fused_plugin.h
//   state = "float32"  of the two averages: float32 (the dtype of the weights, as in PyTorch), bf16 (with stochastic
//                      rounding, Gupta et al., ICML 2015), 8bit (block-wise quantised, Dettmers et al., ICLR 2022)
#pragma once

#include "fused_plugin.h"

template <class Settings>
class AdamPlugin final : public FusedPlugin<Settings> {
  using Base = FusedPlugin<Settings>;

 public:
  explicit AdamPlugin(vernier::Options& options)
      : Base(options,
             {Base::rate(), std::is_same_v<Settings, vernier::AdamWOptions> ? Base::taken_decay() : Base::added_decay(),
              Base::beta1(), Base::beta2()},
             {Base::eps(), {"amsgrad", &Settings::amsgrad, "use the largest mean of squares so far"}}, &read_state) {}

 protected:
  void finish(vernier::ParameterGroup<Settings>& group, const vernier::Run& run) const override {
    group.options.seed = run.seed;
    this->refuse_small_eps(group.options.eps, run);
    if (group.options.state == vernier::AdamState::full) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.master.scalar_type() == torch::kFloat) continue;
      vernier::refuse(
          c10::str(this->id(), ": state = \"", group.options.state == vernier::AdamState::bfloat16 ? "bf16" : "8bit",
                   "\" is for float32 weights, and ", parameter.name, " is ", parameter.master.scalar_type(),
                   ": leave `state` out, or keep float32 weights"),
          this->id());
    }
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    const auto* precision = dynamic_cast<const vernier::Precision*>(&other);
    if (precision != nullptr && !precision->has_float32() && this->settings().state != vernier::AdamState::full) {
      return {"state",
              "is for float32 weights, and " + other.id() + " keeps them in 16 bits; leave one of the two out"};
    }
    return Base::contradicts(other, bus);
  }

 private:
  static void read_state(vernier::Options& options, Settings& settings, bool is_group) {
    if (is_group) return;
    const auto state = options.choose("state", "float32", {"float32", "bf16", "8bit"}, "in what the averages are kept");
    options.saves_memory("state", "8bit", "a quarter of the optimizer's memory; the loss differs a little");
    if (state == "bf16") settings.state = vernier::AdamState::bfloat16;
    if (state == "8bit") settings.state = vernier::AdamState::eight_bit;
    if (settings.amsgrad && state != "float32") {
      options.refuse("state", "is float32 where amsgrad keeps a third average");
    }
  }
};
