// adamw: Adam with decoupled weight decay, in one fused pass, with the numbers of torch.optim.AdamW(fused=True).
// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
//   learning_rate = 0.001
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   weight_decay = 0.01
//   no_decay = []      names of parameters without weight decay, * for any text: ["*.bias", "*.ln_*"]
//   amsgrad = false
//   state = "float32"  of the two averages: float32 (the dtype of the weights, as in PyTorch), bf16 (with stochastic
//                      rounding, Gupta et al., ICML 2015), 8bit (block-wise quantised, Dettmers et al., ICLR 2022)
//   in_backward = false   uses and frees each gradient in backward
#include <fnmatch.h>
#include <vernier/sdk.h>

#include <algorithm>

#include "fused_step.h"

class AdamWPlugin final : public vernier::Optimizer {
 public:
  explicit AdamWPlugin(vernier::Options& options)
      : options_{.lr = options.get("learning_rate", 1e-3, "step size, before schedules", vernier::at_least(0)),
                 .beta1 = options.get("beta1", 0.9, "decay of the mean of gradients", vernier::between(0, 0.9999999)),
                 .beta2 = options.get("beta2", 0.999, "decay of the mean of squares", vernier::between(0, 0.9999999)),
                 .eps = options.get("eps", 1e-8, "added to the root of the mean of squares", vernier::at_least(0)),
                 .weight_decay = options.get("weight_decay", 0.01, "share taken off a weight", vernier::at_least(0)),
                 .amsgrad = options.get("amsgrad", false, "use the largest mean of squares so far")},
        no_decay_(options.get("no_decay", std::vector<std::string>{}, "names without weight decay, * for any text")),
        state_(options.choose("state", "float32", {"float32", "bf16", "8bit"}, "in what the averages are kept")),
        fused_(options, options_.lr) {
    if (state_ == "bf16") options_.state = vernier::AdamState::bfloat16;
    if (state_ == "8bit") options_.state = vernier::AdamState::eight_bit;
    if (options_.amsgrad && state_ != "float32")
      options.refuse("state", "is float32 where amsgrad keeps a third average");
  }

  void attach(vernier::Bus& bus) override { fused_.attach(bus); }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    return fused_.contradiction(other, bus);
  }
  void prepare(vernier::Run& run) override {
    fused_.refuse_masters(run, "adamw");
    refuse_small_eps(run);
    refuse_16_bits(run);
    options_.seed = run.seed;
    for (const auto& pattern : no_decay_) refuse_unmatched(pattern, run);
    vernier::AdamW::Group decayed{{}, options_}, plain{{}, options_};
    plain.options.weight_decay = 0;
    std::vector<std::string> plain_names;
    for (const auto& parameter : run.parameters) {
      auto& group = is_plain(parameter.name) ? plain : decayed;
      auto& names = is_plain(parameter.name) ? plain_names : names_;
      group.parameters.push_back(parameter.master);
      names.push_back(parameter.name);
    }
    names_.insert(names_.end(), plain_names.begin(), plain_names.end());
    fused_.start(std::make_unique<vernier::AdamW>(std::vector{decayed, plain}));
  }

  void step(vernier::Run& run) override { fused_.step(run); }
  bool divides_gradients() const override { return true; }
  bool steps_in_backward() const override { return fused_.is_in_backward(); }

  // The state is under the parameters' names. Their indices depend on no_decay, which may change on resume.
  vernier::State save() const override {
    return renamed(fused_.optimizer().state_dict(),
                   [this](const std::string& number) { return names_[std::stoul(number)]; });
  }
  void load(const vernier::State& state) override {
    fused_.optimizer().load_state_dict(renamed(state, [this](const std::string& name) {
      return std::to_string(std::ranges::find(names_, name) - names_.begin());
    }));
  }

 private:
  // Puts another text before the slash of each entry of a parameter.
  template <class Function>
  static vernier::State renamed(const vernier::State& state, const Function& other) {
    vernier::State result;
    for (const auto& [key, tensor] : state.tensors) {
      const auto slash = key.rfind('/');
      const bool is_shared = slash == std::string::npos || key.starts_with("param_groups/");
      result.put(is_shared ? key : other(key.substr(0, slash)) + key.substr(slash), tensor);
    }
    return result;
  }
  static bool matches(const std::string& pattern, const std::string& name) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  }
  bool is_plain(const std::string& name) const {
    return std::ranges::any_of(no_decay_, [&](const auto& pattern) { return matches(pattern, name); });
  }
  // The squares have the dtype of the weights. In float16 the squares of most gradients are 0, so only eps divides.
  void refuse_small_eps(const vernier::Run& run) const {
    if (options_.eps >= 1e-5) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.master.scalar_type() != torch::kHalf) continue;
      throw vernier::Error(
          c10::str("optimizer/adamw: eps = ", options_.eps, " is too small for float16 weights (", parameter.name,
                   "), whose squared gradients vanish: set eps = 1e-4, or keep float32 weights (level O2)"),
          vernier::Error::Kind::configuration);
    }
  }
  void refuse_16_bits(const vernier::Run& run) const {
    if (state_ == "float32") return;
    for (const auto& parameter : run.parameters) {
      if (parameter.master.scalar_type() == torch::kFloat) continue;
      throw vernier::Error(
          c10::str("optimizer/adamw: state = \"", state_, "\" is for float32 weights, and ", parameter.name, " is ",
                   parameter.master.scalar_type(), ": leave `state` out, or keep float32 weights"),
          vernier::Error::Kind::configuration);
    }
  }
  static void refuse_unmatched(const std::string& pattern, const vernier::Run& run) {
    if (std::ranges::any_of(run.parameters, [&](const auto& parameter) { return matches(pattern, parameter.name); }))
      return;
    const auto example = run.parameters.empty() ? "" : ", such as " + run.parameters.front().name;
    throw vernier::Error(
        "optimizer/adamw: `no_decay` has \"" + pattern + "\", which is the name of no parameter" + example,
        vernier::Error::Kind::configuration);
  }

  vernier::AdamWOptions options_;
  std::vector<std::string> no_decay_;
  std::string state_;
  FusedStep fused_;
  std::vector<std::string> names_;  // in the order of the optimizer
};

VERNIER_PLUGIN(AdamWPlugin, "adamw", "1.1.0")
