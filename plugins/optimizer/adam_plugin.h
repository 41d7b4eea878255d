// Shared by optimizer/adam and optimizer/adamw: all but the defaults and the rule.
#pragma once

#include "fused_plugin.h"

template <class Settings>
class AdamPlugin final : public FusedPlugin<Settings> {
 public:
  explicit AdamPlugin(vernier::Options& options) : FusedPlugin<Settings>(options, {}, &read_both, &read_rest) {}

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
    return FusedPlugin<Settings>::contradicts(other, bus);
  }

 private:
  static void read_both(vernier::Options& options, Settings& settings) {
    const bool is_decoupled = std::is_same_v<Settings, vernier::AdamWOptions>;
    FusedPlugin<Settings>::read_rates(
        options, settings,
        is_decoupled ? "share taken off a weight, times the learning rate" : "times the weight, added to the gradient");
    settings.beta1 =
        FusedPlugin<Settings>::read_decay(options, "beta1", settings.beta1, "decay of the mean of gradients");
    settings.beta2 =
        FusedPlugin<Settings>::read_decay(options, "beta2", settings.beta2, "decay of the mean of squares");
  }
  static void read_rest(vernier::Options& options, Settings& settings) {
    settings.eps = options.get("eps", settings.eps, "added to the root of the mean of squares", vernier::at_least(0));
    settings.amsgrad = options.get("amsgrad", settings.amsgrad, "use the largest mean of squares so far");
    const auto state = options.choose("state", "float32", {"float32", "bf16", "8bit"}, "in what the averages are kept");
    options.saves_memory("state", "8bit", "a quarter of the optimizer's memory; the loss differs a little");
    if (state == "bf16") settings.state = vernier::AdamState::bfloat16;
    if (state == "8bit") settings.state = vernier::AdamState::eight_bit;
    if (settings.amsgrad && state != "float32") {
      options.refuse("state", "is float32 where amsgrad keeps a third average");
    }
  }
};
