// A line that a metric may cross, for callbacks that act when it does: the options metric, above = inf, below = -inf.
#pragma once

#include <vernier/record.h>
#include <vernier/sdk.h>

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

  // Called in Plugin::check. Refuses a metric of validations that none measures, and a line that no value crosses.
  // Returns a warning of a name that nobody is known to set; "": none.
  std::string check(const vernier::Run& run) const {
    if (const auto* info = run.metric_info(metric_)) {
      check_range(*info, run);
      return "";
    }
    std::vector<std::string> names;
    for (const auto& [name, info] : run.metric_infos) names.push_back(name);
    const auto near = vernier::nearest(metric_, names);
    if (near.empty()) return "";
    return "nobody is known to set the metric \"" + metric_ + "\"; did you mean \"" + near + "\"?";
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

  // Called after each validation. Returns once a warning of a metric that no plugin has set; "": none.
  std::string unknown() {
    if (metric_.empty() || std::exchange(is_known_, true)) return "";
    return "no plugin has set the metric \"" + metric_ + "\" so far; monitor/jsonl shows all metrics that are set";
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

  // Also computes those that monitors compute from the run's counts.
  std::optional<double> measured(const vernier::Run& run) const {
    if (metric_ == "loss") return run.loss.defined() ? std::optional(run.loss.item<double>()) : std::nullopt;
    const bool has_scaler = run.found_inf.defined() || !run.amp.history().empty();
    if (metric_ == "overflow_rate" && has_scaler) return overflow_ratio(run.amp);
    if (metric_ == "overflows" && has_scaler) return static_cast<double>(run.amp.overflow_count());
    if (metric_ == "skipped_updates") return static_cast<double>(skipped_updates(run));
    return run.metrics.value(metric_.c_str());
  }

  std::string metric_;
  double above_, below_;
  bool is_known_ = false;
};
