// What the scalers tell alike: changes of the scale, its leaving the range that is thought healthy, the share of
// gradients that underflow.
#pragma once

#include <vernier/sdk.h>

#include <algorithm>
#include <utility>

// The metric "underflow", every so many steps, from gradients that are still scaled.
class UnderflowMeter {
 public:
  explicit UnderflowMeter(vernier::Options& options)
      : every_(options.get("measure_every", 100, "steps between measurements of underflow; 0: none",
                           vernier::at_least(0))) {}
  void measure(vernier::Run& run) const {
    if (every_ == 0 || (run.step + 1) % every_ != 0) return;
    if (const auto share = vernier::underflow_share(run.gradients()); share.defined()) {
      run.metrics.set("underflow", share);
    }
  }

 private:
  std::int64_t every_;
};

// Ends a run in which nothing is learnt any more.
class OverflowBound {
 public:
  explicit OverflowBound(vernier::Options& options)
      : most_(options.get("overflows_in_a_row", 200, "the run ends after so many skipped for it; 0: never",
                          vernier::at_least(0))) {}

  void start(const vernier::Run& run) { seen_ = run.amp.overflows(); }
  std::int64_t most() const { return most_; }  // 0: no bound

  // At each StepEnd; on a GPU the overflows are those of the step before.
  void count(vernier::Run& run, const vernier::Plugin& scaler) {
    const auto before = std::exchange(seen_, run.amp.overflows());
    if (before == unknown) return;
    in_a_row_ = seen_ > before ? in_a_row_ + 1 : 0;
    if (most_ == 0 || in_a_row_ < most_) return;
    run.control.fail(scaler, c10::str("the gradients of ", in_a_row_, " updates in a row overflowed (overflows_in_a_row); ",
                                      remedy));
  }

  void save(vernier::State& state) const {
    state.put("overflows_in_a_row", in_a_row_);
    state.put("overflows_seen", seen_);
  }
  void load(const vernier::State& state) {  // one that ended a run begins anew: its cause may have been mended
    in_a_row_ = state.has("overflows_in_a_row") ? state.integer("overflows_in_a_row") : 0;
    if (in_a_row_ >= most_) in_a_row_ = 0;
    seen_ = state.has("overflows_seen") ? state.integer("overflows_seen") : unknown;
  }

  static constexpr const char* remedy =
      "the loss diverged, or a layer computes what is not finite: lower the learning rate, compute that layer in fp32 by a "
      "[[precision.rule]], or go back to an earlier checkpoint";

 private:
  static constexpr std::int64_t unknown = -1;  // of an older checkpoint: the first step after it counts for nothing

  std::int64_t most_, in_a_row_ = 0;
  std::int64_t seen_ = 0;  // of the run's overflows at the last StepEnd; they go back with the run, and so does this
};

class ScaleWatch {
 public:
  explicit ScaleWatch(vernier::Options& options)
      : meter(options),
        bound(options),
        below_(options.get("warn_below", 1.0, "a notice where the scale is or comes that low; 0: none",
                           vernier::at_least(0))),
        above_(options.get("warn_above", 0x1p40, "a notice where the scale is or comes that high; 0: none",
                           vernier::at_least(0))) {
    if (below_ > 0 && above_ > 0 && below_ >= above_) {
      options.refuse("warn_below", c10::str("is not below warn_above = ", above_));
    }
  }

  // The scale of the first step, and the ends of its range; 0: none.
  void start(const vernier::Run& run, double scale, double least = 0, double most = 0) {
    bound.start(run);
    start_ = scale;
    least_ = least;
    most_ = most;
    told_ = 0;
  }

  // Reading the scale is free on the CPU. On a GPU the host would wait, so it is read when a skip has become
  // known, and every hundred steps.
  static bool is_time(const vernier::Run& run) {
    const auto is_skip = [](const vernier::Notice& notice) { return notice.name == "step_skipped"; };
    return !run.learns_late || run.step % 100 == 0 || std::ranges::any_of(run.notices, is_skip);
  }

  void tell(vernier::Run& run, double now) {
    if (told_ == 0) {
      warn(run, 0, start_);
      told_ = start_;
    }
    if (now == told_) return;
    const double before = std::exchange(told_, now);
    run.notice("scale_changed", {{"from", before}, {"to", now}});
    warn(run, before, now);
  }

  // What was told last is remembered: on a GPU a change may be told a hundred steps late.
  void save(vernier::State& state) const {
    state.put("told", told_);
    state.put("start", start_);
    bound.save(state);
  }
  void load(const vernier::State& state, double now) {
    start_ = state.has("start") ? state.real("start") : now;
    told_ = state.has("told") ? state.real("told") : now;
    bound.load(state);
  }

  const UnderflowMeter meter;
  OverflowBound bound;

 private:
  // That a run starts at an end of its range is no news: both were written by one hand.
  void warn(vernier::Run& run, double from, double to) const {
    std::vector<std::pair<std::string, vernier::Notice::Detail>> low{{"scale", to}}, high = low;
    if (has_come_down(below_, from, to)) low.emplace_back("warn_below", below_);
    if (from > 0 && has_come_down(least_, from, to)) low.emplace_back("min_scale", least_);
    if (has_come_up(above_, from, to)) high.emplace_back("warn_above", above_);
    if (from > 0 && has_come_up(most_, from, to)) high.emplace_back("max_scale", most_);
    if (low.size() > 1) run.notice("scale_low", low);
    if (high.size() > 1) run.notice("scale_high", high);
  }

  // From 0 is from nowhere, a bound of 0 is none. As float32, which a scale is: it may reach a bound only where both are.
  static bool has_come_down(double bound, double from, double to) {
    const auto end = static_cast<float>(bound), before = static_cast<float>(from);
    return static_cast<float>(to) <= end && (before == 0 || before > end);
  }
  static bool has_come_up(double bound, double from, double to) {
    const auto end = static_cast<float>(bound);
    return bound > 0 && static_cast<float>(to) >= end && static_cast<float>(from) < end;
  }

  double below_, above_;
  double start_ = 0, least_ = 0, most_ = 0;
  double told_ = 0;  // 0: nothing yet
};
