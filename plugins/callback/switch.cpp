// switch: replaces plugins once in the middle of a run, after a step or when a metric crosses a line.
//   at_step = 0    after so many steps; 0: not by the step
//   metric = ""    a metric by name, or "loss"; it is checked after each step and each validation
//   above = inf    switches when the metric is above it
//   below = -inf   switches when the metric is below it
//   to             required: by role the table of its plugin from then on, as in
//
//   [[callback]]
//   use = "switch"
//   at_step = 1000
//   [callback.to]
//   precision = {use = "fp16"}
//   scaler = {use = "dynamic"}
//
// docs/architecture.md describes a swap. With a metric, the host waits for the device in each step.
#include <vernier/metric_info.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>

class Switch final : public vernier::Callback {
 public:
  explicit Switch(vernier::Options& options)
      : at_step_(options.get("at_step", 0, "switches after so many steps; 0: not by the step", vernier::at_least(0))),
        metric_(options.get("metric", "", "checked after each step and each validation; or \"loss\"")),
        above_(options.get("above", HUGE_VAL, "switches when the metric is above it")),
        below_(options.get("below", -HUGE_VAL, "switches when the metric is below it")),
        to_(options.require<vernier::Table>("to", "by role the table of its plugin from then on")) {
    const bool has_line = options.given("above") || options.given("below");
    if (!metric_.empty() && !has_line) options.refuse("metric", "needs a line: add `above` or `below`");
    if (metric_.empty() && has_line) options.refuse(options.given("above") ? "above" : "below", "needs a `metric`");
    if (options.given("to") && metric_.empty() && at_step_ == 0) {
      options.refuse("at_step", "or `metric` must say when to switch");
    }
  }

  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) { look(run); });
    bus.on(vernier::Event::Validated, [this](vernier::Run& run) {
      look(run);
      if (metric_.empty() || is_known_) return;
      warn("no plugin has set the metric \"", metric_, "\" so far; monitor/jsonl shows all metrics that are set");
      is_known_ = true;  // warns once
    });
  }
  void prepare(vernier::Run& run) override { run.control->try_swap(to_); }
  void check(const vernier::Run& run) override {
    if (has_switched_) return;
    if (metric_.empty()) {
      if (run.steps == 0 || at_step_ < run.steps) return;
      return warn("it never acts: at_step = ", at_step_, ", and the run has ", run.steps, " steps");
    }
    if (const auto* info = vernier::metric_info(metric_)) return check_line(*info, run);
    std::vector<std::string> names = {"loss"};
    for (const auto& measure : run.measures.value_or(std::vector<vernier::Measure>())) names.push_back(measure.name);
    if (std::ranges::find(names, metric_) != names.end()) return;
    for (const auto& each : vernier::metric_infos()) names.emplace_back(each.name);
    const auto near = vernier::nearest(metric_, names);
    if (!near.empty()) warn("nobody is known to set the metric \"", metric_, "\"; did you mean \"", near, "\"?");
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("has_switched", static_cast<std::int64_t>(has_switched_));
    return state;
  }
  void load(const vernier::State& state) override { has_switched_ = state.integer("has_switched") != 0; }

 private:
  void look(vernier::Run& run) {
    if (has_switched_ || !(run.step == at_step_ || has_crossed(run))) return;
    has_switched_ = true;
    run.control->swap(to_);
  }
  // Refuses a metric of validations that none measures, and a line that no value of the metric crosses.
  void check_line(const vernier::MetricInfo& info, const vernier::Run& run) const {
    if (metric_ != "loss" && info.better != vernier::Better::unknown) (void)run.better(metric_);
    const auto refuse = [&](const char* key, double line, const char* relation, double end) {
      vernier::refuse(c10::str("`", key, "` is ", line, ", and \"", metric_, "\" is never ", relation, ' ', end));
    };
    if (std::isfinite(above_) && above_ >= info.most) refuse("above", above_, "above", info.most);
    if (std::isfinite(below_) && below_ <= info.least) refuse("below", below_, "below", info.least);
  }
  bool has_crossed(const vernier::Run& run) {
    if (metric_.empty()) return false;
    const auto measured = run.metrics.value(metric_.c_str());
    const auto value = metric_ == "loss" ? run.loss.item<double>() : measured.value_or(NAN);
    is_known_ = is_known_ || measured || metric_ == "loss";
    return value > above_ || value < below_;
  }

  std::int64_t at_step_;
  std::string metric_;
  double above_, below_;
  vernier::Table to_;
  bool has_switched_ = false, is_known_ = false;
};

VERNIER_PLUGIN(Switch, "switch", "1.0.0")
