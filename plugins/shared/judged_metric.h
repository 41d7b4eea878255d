// A metric of the validations by which a plugin judges a run: its options `metric` and `mode`.
#pragma once

#include <vernier/options.h>
#include <vernier/run.h>

#include <cmath>
#include <optional>
#include <string>

class JudgedMetric {
 public:
  // purpose: where the metric is for one of several uses of the plugin, "plateau: ".
  explicit JudgedMetric(vernier::Options& options, const std::string& purpose = "")
      : name_(options.get("metric", "validation_loss", (purpose + "metric of the validations").c_str())),
        mode_(options.choose("mode", "auto", {"auto", "min", "max"},
                             (purpose + "whether lower or higher is better; auto: as the metric has it").c_str())) {}

  // In Plugin::check. Refuses a metric that no validation measures, and a mode that is not the metric's.
  void check(const vernier::Run& run) {
    using vernier::Better;
    auto better = run.better(name_);
    if (better == Better::unknown) {
      if (const auto* info = run.metric_info(name_)) better = info->better;
    }
    if (mode_ == "auto") {
      if (better == Better::unknown) {
        vernier::refuse("`mode` is needed: nothing says which values of \"" + name_ +
                        "\" are better; write mode = \"max\" if the higher ones are, or mode = \"min\"");
      }
    } else if (const auto other = mode_ == "max" ? Better::lower : Better::higher; better == other) {
      vernier::refuse("`mode` is \"" + mode_ + "\", and " + (mode_ == "max" ? "lower" : "higher") + " values of \"" +
                      name_ + "\" are better; leave `mode` out");
    }
    is_max_ = mode_ == "max" || (mode_ == "auto" && better == Better::higher);
  }

  // At Validated: the value, a host sync where it is a tensor. Throws Error if the validation has not set it.
  double value(const vernier::Run& run) {
    if (!is_max_) check(run);  // there is no trainer that has done it
    if (const auto value = run.metrics.value(name_.c_str())) return *value;
    std::string others;
    for (const auto* entry : run.metrics.set_now()) others += (others.empty() ? "" : ", ") + entry->name;
    vernier::refuse("`metric` is \"" + name_ + "\", which this run's validation does not measure; it measures " +
                    (others.empty() ? "nothing" : others));
  }

  // After check(). A value that is not finite is never better, and any other one is better than none.
  bool is_better(double value, std::optional<double> best, double by = 0) const {
    if (!std::isfinite(value)) return false;
    return !best || (is_max() ? value > *best + by : value < *best - by);
  }

  bool is_max() const { return is_max_.value_or(false); }
  const std::string& name() const { return name_; }

 private:
  std::string name_, mode_;
  std::optional<bool> is_max_;  // from check() on
};
