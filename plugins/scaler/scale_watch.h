// What the scalers tell alike: changes of the scale, its leaving the range that is thought healthy, the share of
// gradients that underflow.
#pragma once

#include <vernier/sdk.h>

#include <algorithm>

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

  // At each StepEnd; on a GPU the skips are those of the step before.
  void count(vernier::Run& run, const vernier::Plugin& scaler) {
    const vernier::Notice::Detail overflow = std::string("gradients not finite");
    const auto is_overflow = [&](const vernier::Notice& notice) {
      const auto is_reason = [&](const auto& detail) { return detail.second == overflow; };
      return notice.name == "step_skipped" && std::ranges::any_of(notice.details, is_reason);
    };
    in_a_row_ = std::ranges::any_of(run.notices, is_overflow) ? in_a_row_ + 1 : 0;
    if (most_ == 0 || in_a_row_ < most_) return;
    run.control.fail(scaler, c10::str("the gradients of ", in_a_row_, " updates in a row overflowed (overflows_in_a_row); ",
                                      remedy));
  }

  void save(vernier::State& state) const { state.put("overflows_in_a_row", in_a_row_); }
  void load(const vernier::State& state) {  // one that ended a run begins anew: its cause may have been mended
    in_a_row_ = state.has("overflows_in_a_row") ? state.integer("overflows_in_a_row") : 0;
    if (in_a_row_ >= most_) in_a_row_ = 0;
  }

  static constexpr const char* remedy =
      "the loss diverged, or a layer computes what is not finite: lower the learning rate, compute that layer in fp32 by a "
      "[[precision.rule]], or go back to an earlier checkpoint";

 private:
  std::int64_t most_, in_a_row_ = 0;
};

class ScaleWatch {
 public:
  explicit ScaleWatch(vernier::Options& options)
      : meter(options),
        bound(options),
        below_(options.get("warn_below", 1.0, "a notice where the scale comes down to it; 0: none",
                           vernier::at_least(0))),
        above_(options.get("warn_above", 0x1p40, "a notice where the scale comes up to it; 0: none",
                           vernier::at_least(0))) {
    if (below_ > 0 && above_ > 0 && below_ >= above_) {
      options.refuse("warn_below", c10::str("is not below warn_above = ", above_));
    }
  }

  void start(double scale) { told_ = scale; }

  // Reading the scale is free on the CPU. On a GPU the host would wait, so it is read when a skip has become
  // known, and every hundred steps.
  static bool is_time(const vernier::Run& run) {
    const auto is_skip = [](const vernier::Notice& notice) { return notice.name == "step_skipped"; };
    return !run.learns_late || run.step % 100 == 0 || std::ranges::any_of(run.notices, is_skip);
  }

  void tell(vernier::Run& run, double now) {
    if (now == told_) return;
    run.notice("scale_changed", {{"from", told_}, {"to", now}});
    if (now <= below_ && told_ > below_) run.notice("scale_low", {{"scale", now}, {"warn_below", below_}});
    if (above_ > 0 && now >= above_ && told_ < above_) {
      run.notice("scale_high", {{"scale", now}, {"warn_above", above_}});
    }
    told_ = now;
  }

  // What was told last is remembered: on a GPU a change may be told a hundred steps late.
  void save(vernier::State& state) const {
    state.put("told", told_);
    bound.save(state);
  }
  void load(const vernier::State& state, double now) {
    told_ = state.has("told") ? state.real("told") : now;
    bound.load(state);
  }

  const UnderflowMeter meter;
  OverflowBound bound;

 private:
  double below_, above_;
  double told_ = 0;
};
