// A line that a metric may cross, for callbacks that act when it does: the options metric, above = inf, below = -inf.
#pragma once

#include <vernier/record.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

class MetricLine {
 public:
  explicit MetricLine(vernier::Options& options)
      : metric_(options.get("metric", "", "looked at after each step and each validation; or \"loss\"")),
        above_(options.get("above", HUGE_VAL, "acts when the metric is above it")),
        below_(options.get("below", -HUGE_VAL, "acts when the metric is below it")) {
    const bool has_line = options.given("above") || options.given("below");
    if (!metric_.empty() && !has_line) options.refuse("metric", "needs a line: add `above` or `below`");
    if (metric_.empty() && has_line) options.refuse(options.given("above") ? "above" : "below", "needs a `metric`");
  }

  bool is_given() const { return !metric_.empty(); }
  const std::string& metric() const { return metric_; }

  // Called in Plugin::attach. look is called after each step and each validation, and may ask for the value.
  void follow(vernier::Bus& bus, const vernier::Plugin& plugin, const std::function<void(vernier::Run&)>& look) {
    bus.on(vernier::Event::StepEnd, look);
    bus.on(vernier::Event::Validated, [this, look, &plugin](vernier::Run& run) {
      look(run);
      if (metric_.empty() || std::exchange(is_known_, true)) return;
      const auto who = "no plugin that stands before this one has set the metric \"" + metric_ + "\" so far";
      vernier::log(vernier::Level::warning, plugin.id(), who + "; monitor/csv shows all metrics that are set");
    });
  }

  // Called in Plugin::check. Refuses a metric of validations that none measures, and a line that no value crosses.
  // Warns of a name that nobody is known to set.
  void check(const vernier::Run& run, const vernier::Plugin& plugin) const {
    if (const auto* info = run.metric_info(metric_)) return check_range(*info, run);
    std::vector<std::string> names;
    for (const auto& [name, info] : run.metric_infos) names.push_back(name);
    if (const auto near = vernier::nearest(metric_, names); !near.empty()) {
      vernier::log(vernier::Level::warning, plugin.id(),
                   "nobody is known to set the metric \"" + metric_ + "\"; did you mean \"" + near + "\"?");
    }
  }

  // Its value now; nothing: it was not measured.
  std::optional<double> value(const vernier::Run& run) {
    const auto value = measured(run);
    is_known_ = is_known_ || value;
    return value;
  }
  bool is_crossed(double value) const { return value > above_ || value < below_; }
  // "above 0.1": the side on which a crossing value is.
  std::string side(double value) const {
    return value > above_ ? c10::str("above ", above_) : c10::str("below ", below_);
  }

 private:
  void check_range(const vernier::MetricInfo& info, const vernier::Run& run) const {
    if (metric_ != "loss" && info.better != vernier::Better::unknown) (void)run.better(metric_);
    const auto refuse = [&](const char* key, double line, const char* relation, double end) {
      vernier::refuse(c10::str("`", key, "` is ", line, ", and \"", metric_, "\" is never ", relation, ' ', end));
    };
    if (std::isfinite(above_) && above_ >= info.most) refuse("above", above_, "above", info.most);
    if (std::isfinite(below_) && below_ <= info.least) refuse("below", below_, "below", info.least);
  }

  // The Collector has the counts and rates of the trainer, as monitors show them.
  std::optional<double> measured(const vernier::Run& run) {
    if (metric_ == "loss") return run.loss.defined() ? std::optional(run.loss.item<double>()) : std::nullopt;
    if (const auto value = run.metrics.value(metric_.c_str())) return value;
    const auto* info = run.metric_info(metric_);
    if (info == nullptr || info->source != "trainer" || metric_ == "validation_loss") return std::nullopt;
    using Kind = vernier::Record::Kind;
    collector_.collect(run, run.metrics.value("validation_loss") ? Kind::validation : Kind::step, record_);
    const auto found = std::ranges::find(record_.entries, metric_, [](const auto& each) { return each.metric->name; });
    return found != record_.entries.end() ? std::optional(found->value) : std::nullopt;
  }

  std::string metric_;
  double above_, below_;
  bool is_known_ = false;
  vernier::Collector collector_;
  vernier::Record record_;
};
