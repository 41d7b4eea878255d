// Lowers a factor when a metric stops improving, by the rule of torch.optim.lr_scheduler.ReduceLROnPlateau. Unlike
// there, a small change is made too: its `eps` is 0.
#pragma once

#include <vernier/options.h>
#include <vernier/state.h>

#include <algorithm>
#include <optional>
#include <string>

#include "shared/judged_metric.h"

class Plateau {
 public:
  explicit Plateau(vernier::Options& options)
      : metric_(options, "plateau: "),
        reduction_(options.get("factor", 0.1, "plateau: what a reduction multiplies by", vernier::between(0, 1))),
        patience_(options.get("patience", 10, "plateau: validations without improvement that are let pass",
                              vernier::at_least(0))),
        threshold_(options.get("threshold", 1e-4, "plateau: least improvement that counts", vernier::at_least(0))),
        is_relative_(options.choose("threshold_mode", "relative", {"relative", "absolute"},
                                    "plateau: what the threshold is") == "relative"),
        cooldown_(options.get("cooldown", 0, "plateau: validations after a reduction that do not count",
                              vernier::at_least(0))),
        least_(options.get("min_factor", 0.0, "plateau: least share of the learning rate", vernier::between(0, 1))) {}

  // After each validation. Returns whether the factor has changed.
  bool look(double value) {
    if (is_better(value)) {
      best_ = value;
      bad_ = 0;
    } else {
      bad_ += 1;
    }
    if (cooling_ > 0) {
      cooling_ -= 1;
      bad_ = 0;
    }
    if (bad_ <= patience_) return false;
    cooling_ = cooldown_;
    bad_ = 0;
    const double before = factor_;
    factor_ = std::max(factor_ * reduction_, least_);
    return factor_ != before;
  }

  JudgedMetric& metric() { return metric_; }
  std::int64_t patience() const { return patience_; }
  double factor() const { return factor_; }  // the share of the learning rate that is used now

  vernier::State save() const {
    vernier::State state;
    state.put("factor", factor_);
    if (best_) state.put("best", *best_);
    state.put("bad", bad_);
    state.put("cooling", cooling_);
    return state;
  }
  void load(const vernier::State& state) {
    factor_ = state.real("factor");
    best_ = state.has("best") ? std::optional(state.real("best")) : std::nullopt;
    bad_ = state.integer("bad");
    cooling_ = state.integer("cooling");
  }

 private:
  bool is_better(double value) const {
    return metric_.is_better(value, best_, is_relative_ && best_ ? std::abs(*best_) * threshold_ : threshold_);
  }

  JudgedMetric metric_;
  double reduction_;
  std::int64_t patience_;
  double threshold_;
  bool is_relative_;
  std::int64_t cooldown_;
  double least_, factor_ = 1;
  std::optional<double> best_;
  std::int64_t bad_ = 0, cooling_ = 0;
};
