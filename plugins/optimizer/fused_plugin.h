// Shared by the plugins of vernier::Fused optimizers: the step at the run's learning rate, groups of parameters, state
// under the parameters' names, and the option `in_backward`. With it, each gradient is used and freed as soon as the
// backward pass of the batch's last micro-batch has completed it (FusedOptimizer::step_in_backward).
// docs/guides/optimizers.md says what that costs.
#pragma once

#include <vernier/layer_decay.h>
#include <vernier/optim.h>
#include <vernier/parameter_groups.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <memory>
#include <set>

// Settings: vernier::AdamWOptions and so on.
template <class Settings>
class FusedPlugin : public vernier::Optimizer {
 public:
  void attach(vernier::Bus& bus) override {
    if (!in_backward_) return;
    bus.on(vernier::Event::StepBegin, [this](vernier::Run&) { samples_ = 0; });
    bus.on(vernier::Event::BatchReady, [this](vernier::Run& run) {
      samples_ += run.micro_batch.samples;
      set_rates(run);
      optimizer_->step_in_backward(samples_ == run.batch.samples);
    });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    if (!in_backward_) return {};
    const auto* scaler = dynamic_cast<const vernier::Scaler*>(&other);
    if (scaler != nullptr && scaler->scales()) {
      return {"in_backward", "updates weights before " + other.id() +
                                 " can see whether a gradient overflowed; use bf16 or fp32, which need no scaler"};
    }
    const auto* callback = dynamic_cast<const vernier::Callback*>(&other);
    const bool may_need_gradients = dynamic_cast<const vernier::Accumulation*>(&other) != nullptr ||
                                    (callback != nullptr && callback->needs_gradients());
    if (!may_need_gradients || !bus.listens(other, vernier::Event::GradientsReady)) return {};
    return {"in_backward", "frees each gradient as it is used, and " + other.id() +
                               " wants to see them all; leave one of the two out"};
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "learning_rate", .meaning = "learning rate of the first parameter group, schedules included"}};
  }
  void prepare(vernier::Run& run) override {
    if (in_backward_) refuse_masters(run);
    const auto numbers = groups_.assign(run, id());
    const auto rates = vernier::layer_rates(run, layer_decay_, id());
    std::vector<vernier::ParameterGroup<Settings>> groups;
    kinds_.clear();
    for (std::size_t i = 0; i < settings_.size(); ++i) kinds_.push_back({i, 1});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != vernier::ParameterGroups::frozen && place_of({numbers[i], rates[i]}) == kinds_.size()) {
        kinds_.push_back({numbers[i], rates[i]});
      }
    }
    for (const auto& kind : kinds_) groups.push_back({{}, settings_[kind.group]});
    std::vector<std::vector<std::string>> names(groups.size());
    without_state_.clear();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto& parameter = run.parameters[i];
      const bool is_frozen = numbers[i] == vernier::ParameterGroups::frozen;
      if (is_frozen || !parameter.owned) without_state_.insert(parameter.name);
      if (is_frozen) continue;  // parameters of other ranks keep their numbers, and get no gradient
      const auto place = place_of({numbers[i], rates[i]});
      groups[place].parameters.push_back(parameter.master);
      names[place].push_back(parameter.name);
    }
    names_.clear();
    for (const auto& some : names) names_.insert(names_.end(), some.begin(), some.end());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      auto& own = groups[i].options;
      finish(groups[i], run);
      own.lr *= kinds_[i].rate;
      if constexpr (requires { own.adamw_lr; }) own.adamw_lr *= kinds_[i].rate;
    }
    optimizer_ = std::make_unique<vernier::Fused<Settings>>(groups);
  }

  void step(vernier::Run& run) override {
    set_rates(run);
    if (!in_backward_) return optimizer_->step(run.skip_update, run.grad_scale);
    optimizer_->step_in_backward(false);
    optimizer_->step();  // takes gradients that the last micro-batch did not compute
    optimizer_->zero_grad();
  }
  bool divides_gradients() const override { return true; }
  bool steps_in_backward() const override { return in_backward_; }
  bool updates_each_alone() const override { return true; }

  // Under the parameters' names, because their indices depend on the groups, which may change on resume. Learning rates
  // are left out: the options have them.
  vernier::State save() const override {
    vernier::State named;
    for (const auto& [key, tensor] : optimizer_->state_dict().tensors) {
      if (key.starts_with("param_groups/")) continue;
      const auto slash = key.rfind('/');
      const bool is_shared = slash == std::string::npos;
      named.put(is_shared ? key : names_[std::stoul(key.substr(0, slash))] + key.substr(slash), tensor);
    }
    return named;
  }
  // The state of a parameter that is frozen now is dropped, and that of one which another rank updates. So are averages
  // that the options no longer keep, after a resume with other options or a swap. A parameter that was frozen before
  // starts without state.
  void load(const vernier::State& named) override {
    vernier::State state;
    state.put("parameters", static_cast<std::int64_t>(names_.size()));
    for (std::size_t i = 0; i < kinds_.size(); ++i) state.put(c10::str("param_groups/", i, "/lr"), rate_of(kinds_[i]));
    for (const auto& [key, tensor] : named.tensors) {
      const auto slash = key.rfind('/');
      const auto name = key.substr(0, slash);
      if (slash == std::string::npos || without_state_.contains(name)) continue;
      const auto found = std::ranges::find(names_, name);
      if (found == names_.end()) {
        throw vernier::Error("the saved state has '" + key + "', and the model has no parameter " + name);
      }
      state.put(std::to_string(found - names_.begin()) + key.substr(slash), tensor);
    }
    optimizer_->load_state_dict(state, /*strict=*/false);
  }

 protected:
  using Read = void (*)(vernier::Options& options, Settings& settings);

  // defaults: of [optimizer]. read_both reads the options that groups have too, read_rest those that they have not.
  FusedPlugin(vernier::Options& options, const Settings& defaults, Read read_both, Read read_rest = nullptr)
      : settings_{read_all(options, defaults, read_both, read_rest)},
        groups_(options,
                [&](vernier::Options& group) {
                  settings_.push_back(settings_.front());
                  read_both(group, settings_.back());
                }),
        layer_decay_(options.get("layer_decay", 1.0,
                                 "factor of the last layer's learning rate; each layer below it has it once more",
                                 vernier::between(1e-6, 1))),
        in_backward_(
            options.get("in_backward", false, "use and free each gradient in backward: less memory, no clipping")) {}

  // Called in prepare, for each group: the last changes of its options, and checks that need the run.
  virtual void finish(vernier::ParameterGroup<Settings>& group, const vernier::Run& run) const {
    if constexpr (requires { group.options.eps; }) refuse_small_eps(group.options.eps, run);
  }
  const Settings& settings() const { return settings_.front(); }  // settings of the parameters in no group

  static void read_rates(vernier::Options& options, Settings& settings, const char* weight_decay) {
    settings.lr = options.get("learning_rate", settings.lr, "step size, before schedules", vernier::at_least(0));
    settings.weight_decay = options.get("weight_decay", settings.weight_decay, weight_decay, vernier::at_least(0));
  }
  static double read_decay(vernier::Options& options, const char* key, double fallback, const char* of) {
    return options.get(key, fallback, of, vernier::between(0, 0.9999999));
  }
  // The two means of Adam and its relatives.
  static void read_means(vernier::Options& options, Settings& settings,
                         const char* eps = "added to the root of the mean of squares") {
    settings.beta1 = read_decay(options, "beta1", settings.beta1, "decay of the mean of gradients");
    settings.beta2 = read_decay(options, "beta2", settings.beta2, "decay of the mean of squares");
    settings.eps = options.get("eps", settings.eps, eps, vernier::at_least(0));
  }
  static bool read_decoupled(vernier::Options& options) {
    return options.get("decoupled_weight_decay", false, "take the decay off the weights, as in AdamW");
  }

  // The squares have the dtype of the weights. In float16 the squares of most gradients are 0, so only eps divides.
  void refuse_small_eps(double eps, const vernier::Run& run) const {
    if (eps >= 1e-5) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.master.scalar_type() != torch::kHalf) continue;
      vernier::refuse(c10::str(id(), ": eps = ", eps, " is too small for float16 weights (", parameter.name,
                               "), whose squared gradients vanish: set eps = 1e-4, or keep float32 weights (level O2)"),
                      id());
    }
  }

 private:
  // The parameters of a group whose learning rate has the same factor of layer_decay.
  struct Kind {
    std::size_t group;
    double rate;
    bool operator==(const Kind&) const = default;
  };
  std::size_t place_of(const Kind& kind) const {
    return static_cast<std::size_t>(std::ranges::find(kinds_, kind) - kinds_.begin());
  }
  double rate_of(const Kind& kind) const { return settings_[kind.group].lr * kind.rate; }

  static Settings read_all(vernier::Options& options, Settings settings, Read read_both, Read read_rest) {
    read_both(options, settings);
    if (read_rest != nullptr) read_rest(options, settings);
    return settings;
  }
  void refuse_masters(const vernier::Run& run) const {
    for (const auto& parameter : run.parameters) {
      if (parameter.master.is_same(parameter.model)) continue;
      vernier::refuse(
          c10::str(id(), ": in_backward updates the model's own weights, and the ", "precision keeps others for it (",
                   parameter.name, "); choose one without masters, or leave in_backward out"),
          id());
    }
  }
  void set_rates(vernier::Run& run) {
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      optimizer_->set_lr(rate_of(kinds_[i]) * run.learning_rate_factor, i);
    }
    run.metrics.set("learning_rate", settings_.front().lr * run.learning_rate_factor);
  }

  std::vector<Settings> settings_;  // settings of the parameters in no group, then of each group
  vernier::ParameterGroups groups_;
  std::vector<Kind> kinds_;  // in the order of the optimizer's own groups
  double layer_decay_;
  bool in_backward_;
  std::int64_t samples_ = 0;        // in this batch's micro-batches so far
  std::vector<std::string> names_;  // in the order of the optimizer
  std::set<std::string> without_state_;
  std::unique_ptr<vernier::FusedOptimizer> optimizer_;
};
