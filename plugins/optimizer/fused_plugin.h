// Shared by the plugins of vernier::Fused optimizers: the step at the run's learning rate, groups of parameters, state
// under the parameters' names, and their options:
//   layer_decay = 1.0     factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient as soon as the backward pass of the batch's last micro-batch has
//                         completed it (FusedOptimizer::step_in_backward); docs/guides/optimizers.md says what it costs
//   group = []            [[optimizer.group]] tables (parameter_groups.h), with those of the options that each may have
#pragma once

#include <vernier/draft/model_parts.h>
#include <vernier/layer_decay.h>
#include <vernier/optim.h>
#include <vernier/parameter_groups.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <memory>
#include <set>
#include <type_traits>
#include <variant>

// The options that several of them have. OptionsOfIt: vernier::AdamWOptions and so on.
template <class OptionsOfIt>
struct FusedFields {
  using Settings = OptionsOfIt;
  // An option, and the member that it sets, whose value is the default.
  struct Field {
    const char* key;
    std::variant<double Settings::*, std::int64_t Settings::*, bool Settings::*> member;
    const char* meaning;
    vernier::Range range = {};
  };
  using Fields = std::vector<Field>;

  static Field rate(const char* meaning = "step size, before schedules", vernier::Range range = vernier::at_least(0)) {
    return {"learning_rate", &Settings::lr, meaning, range};
  }
  static Field weight_decay(const char* meaning) {
    return {"weight_decay", &Settings::weight_decay, meaning, vernier::at_least(0)};
  }
  static Field added_decay() { return weight_decay("times the weight, added to the gradient"); }
  static Field taken_decay() { return weight_decay("share taken off a weight, times the learning rate"); }
  static Field decay(const char* key, double Settings::*member, const char* meaning) {
    return {key, member, meaning, vernier::between(0, 0.9999999)};
  }
  static Field beta1(const char* meaning = "decay of the mean of gradients") {
    return decay("beta1", &Settings::beta1, meaning);
  }
  static Field beta2(const char* meaning = "decay of the mean of squares") {
    return decay("beta2", &Settings::beta2, meaning);
  }
  static Field eps(const char* meaning = "added to the root of the mean of squares") {
    return {"eps", &Settings::eps, meaning, vernier::at_least(0)};
  }
  static Field momentum() {
    return {"momentum", &Settings::momentum, "share of the last step that is kept", vernier::at_least(0)};
  }
  static Field is_decoupled() {
    return {"decoupled_weight_decay", &Settings::decoupled_weight_decay, "take the decay off the weights, as in AdamW"};
  }
};

template <class OptionsOfIt>
struct FusedElements : vernier::draft::UpdatesElements {
  bool updates_each_element() const override {
    return !std::is_same_v<OptionsOfIt, vernier::AdafactorOptions> &&
           !std::is_same_v<OptionsOfIt, vernier::LambOptions> && !std::is_same_v<OptionsOfIt, vernier::MuonOptions>;
  }
};

template <class OptionsOfIt>
class FusedPlugin : public vernier::Optimizer, public FusedElements<OptionsOfIt>, protected FusedFields<OptionsOfIt> {
 public:
  using typename FusedFields<OptionsOfIt>::Settings, typename FusedFields<OptionsOfIt>::Fields;

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
    std::vector<vernier::ParameterGroup<Settings>> whole, groups;  // `whole` is split into `groups`
    for (const auto& own : settings_) whole.push_back({{}, own});
    kinds_.clear();
    for (std::size_t i = 0; i < settings_.size(); ++i) kinds_.push_back({i, 1});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == vernier::ParameterGroups::frozen) continue;
      whole[numbers[i]].parameters.push_back(run.parameters[i].master);
      if (place_of({numbers[i], rates[i]}) == kinds_.size()) kinds_.push_back({numbers[i], rates[i]});
    }
    for (auto& group : whole) finish(group, run);
    for (const auto& kind : kinds_) {
      auto& own = groups.emplace_back(vernier::ParameterGroup<Settings>{{}, whole[kind.group].options}).options;
      own.lr *= kind.rate;
      if constexpr (requires { own.adamw_lr; }) own.adamw_lr *= kind.rate;
    }
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
  // Reads and checks the options that are no Field. It is called after the fields of [optimizer] or a group.
  using Also = void (*)(vernier::Options& options, Settings& settings, bool is_group);

  // both: options that groups have too. rest: those that they have not.
  FusedPlugin(vernier::Options& options, const Fields& both, const Fields& rest, Also also = nullptr,
              Settings defaults = {})
      : settings_{read(options, read(options, std::move(defaults), both), rest, also)},
        groups_(options,
                [&](vernier::Options& group) {
                  settings_.push_back(read(group, settings_.front(), both, also, /*is_group=*/true));
                }),
        layer_decay_(options.get("layer_decay", 1.0,
                                 "factor of the last layer's learning rate; each layer below it has it once more",
                                 vernier::between(1e-6, 1))),
        in_backward_(
            options.get("in_backward", false, "use and free each gradient in backward: less memory, no clipping")) {}

  // Called in prepare, for each group of the options: the last changes of its options, and checks that need the run.
  virtual void finish(vernier::ParameterGroup<Settings>& group, const vernier::Run& run) const {
    if constexpr (requires { group.options.eps; }) refuse_small_eps(group.options.eps, run);
  }
  const Settings& settings() const { return settings_.front(); }  // settings of the parameters in no group

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

  static Settings read(vernier::Options& options, Settings settings, const Fields& fields, Also also = nullptr,
                       bool is_group = false) {
    for (const auto& field : fields) {
      std::visit(
          [&](auto at) {
            auto& own = settings.*at;
            if constexpr (std::is_same_v<decltype(at), bool Settings::*>) {
              own = options.get(field.key, own, field.meaning);
            } else {
              own = options.get(field.key, own, field.meaning, field.range);
            }
          },
          field.member);
    }
    if (also != nullptr) also(options, settings, is_group);
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
