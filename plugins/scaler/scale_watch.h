// Shared by all loss scalers. They set the metrics "scale", of this step, and "underflow", which the trainer counts
// into run.amp. They report changes of the scale, warn if it is very low or high, and end a run whose updates all
// overflow.
//   overflows_in_a_row = 200   the run ends after so many updates in a row that were skipped for an overflow; 0: never
//   warn_below = 1, warn_above = 1099511627776   notices scale_low, scale_high where the scale gets there; 0: none
//   measure_every = 100   steps between measurements of "underflow", the share of scaled gradients under 2^-14; 0: none
#pragma once

#include <vernier/loss_scale.h>
#include <vernier/sdk.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

// The metric "underflow", every so many steps, from gradients that are still scaled.
class UnderflowMeter {
 public:
  explicit UnderflowMeter(vernier::Options& options)
      : every_(options.get("measure_every", 100, "steps between measurements of underflow; 0: none",
                           vernier::at_least(0))) {}

  void measure(vernier::Run& run) {
    if (every_ == 0 || (run.step + 1) % every_ != 0) return;
    const auto share = vernier::underflow_share(run.gradients());
    if (!share.defined()) return;
    run.metrics.set("underflow", share);
  }

 private:
  std::int64_t every_;
};

// Ends a run in which nothing is learned any more.
class OverflowBound {
 public:
  explicit OverflowBound(vernier::Options& options)
      : most_(options.get("overflows_in_a_row", 200, "the run ends after so many skipped for it; 0: never",
                          vernier::at_least(0))) {}

  void start(const vernier::Run& run) { seen_ = run.amp.overflow_count(); }
  std::int64_t most() const { return most_; }  // 0: no bound

  // Called at each StepEnd. Where results are late, the overflow is that of the step before.
  void count(vernier::Run& run, const vernier::Plugin& scaler) {
    const auto before = std::exchange(seen_, run.amp.overflow_count());
    in_a_row_ = seen_ > before ? in_a_row_ + 1 : 0;
    if (most_ == 0 || in_a_row_ < most_) return;
    run.control->fail(scaler, c10::str("the gradients of ", in_a_row_,
                                       " updates in a row overflowed (overflows_in_a_row); ", remedy));
  }

  vernier::State save() const {
    vernier::State state;
    state.put("overflows_in_a_row", in_a_row_);
    state.put("overflows_seen", seen_);
    return state;
  }
  // A row that has ended a run starts again from 0, since the user may have removed its cause.
  void load(const vernier::State& state) {
    in_a_row_ = state.integer("overflows_in_a_row");
    if (in_a_row_ >= most_) in_a_row_ = 0;
    seen_ = state.integer("overflows_seen");
  }

 private:
  static constexpr const char* remedy =
      "the loss diverged, or a layer computes what is not finite: lower the learning rate, compute that layer in fp32 "
      "by a [[precision.rule]], or go back to an earlier checkpoint";

  std::int64_t most_, in_a_row_ = 0;
  std::int64_t seen_ = 0;  // the run's overflows at the last StepEnd; a rewind puts both back
};

class ScaleWatch {
 public:
  // Returns the declarations of the metrics that every scaler sets, for Plugin::metrics().
  static std::vector<vernier::MetricInfo> metrics() {
    return {{.name = "scale", .meaning = "factor by which the loss is multiplied before backward"},
            {.name = "underflow", .unit = "ratio", .meaning = "share of the gradients that become 0 in 16 bits"}};
  }

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

  // scale: that of the first step. least, most: the ends of its range; 0: none.
  void start(const vernier::Run& run, double scale, double least = 0, double most = 0) {
    bound.start(run);
    start_ = scale;
    least_ = least;
    most_ = most;
    reported_ = 0;
  }

  // Called in Plugin::attach for a scale that changes. next: reads that of the next step, for which a GPU makes the
  // host wait. So it is read there only when a skipped update has become known, and every hundred steps.
  void attach(vernier::Bus& bus, const vernier::Plugin& scaler, const std::function<double()>& next) {
    bus.on(vernier::Event::StepEnd, [this, &scaler, next](vernier::Run& run) {
      const bool reads = !run.results_are_late || run.step % 100 == 1 || vernier::is_skipped(run.last_update);
      end_step(run, scaler, reads ? std::optional(next()) : std::nullopt);
    });
  }

  // Called by Scaler::unscale while the gradients are still scaled. scale: that of this step.
  void begin(vernier::Run& run, const torch::Tensor& scale) {
    run.metrics.set("scale", scale.clone());  // a copy, since update() may change the tensor in place
    meter.measure(run);
  }
  void begin(vernier::Run& run, double scale) {
    run.metrics.set("scale", scale);
    meter.measure(run);
  }

  // Called at each StepEnd. next: the scale of the next step, where it has been read.
  void end_step(vernier::Run& run, const vernier::Plugin& scaler, std::optional<double> next) {
    bound.count(run, scaler);
    if (next) report(run, *next);
  }

  // The scale of the last report is saved, because on a GPU a change may be reported a hundred steps late.
  vernier::State save() const {
    auto state = bound.save();
    state.put("reported", reported_);
    state.put("start", start_);
    return state;
  }
  void load(const vernier::State& state) {
    start_ = state.real("start");
    reported_ = state.real("reported");
    bound.load(state);
  }

  UnderflowMeter meter;
  OverflowBound bound;

 private:
  void report(vernier::Run& run, double now) {
    if (reported_ == 0) {
      warn(run, 0, start_);
      reported_ = start_;
    }
    if (now == reported_) return;
    const double before = std::exchange(reported_, now);
    run.notice("scale_changed", {{"from", before}, {"to", now}},
               c10::str("the loss scale changed from ", before, " to ", now));
    warn(run, before, now);
  }

  // A run that starts at min_scale or max_scale gets no warning for it: the user chose both.
  void warn(vernier::Run& run, double from, double to) const {
    vernier::Notice::Details low{{"scale", to}}, high = low;
    if (has_come_down(below_, from, to)) low.emplace_back("warn_below", below_);
    if (from > 0 && has_come_down(least_, from, to)) low.emplace_back("min_scale", least_);
    if (has_come_up(above_, from, to)) high.emplace_back("warn_above", above_);
    if (from > 0 && has_come_up(most_, from, to)) high.emplace_back("max_scale", most_);
    const auto notify = [&](const char* name, const vernier::Notice::Details& details, const char* has_come) {
      if (details.size() == 1) return;
      run.notice(name, details, c10::str("the loss scale is ", to, ": it has come ", has_come, details.back().first));
    };
    notify("scale_low", low, "down to ");
    notify("scale_high", high, "up to ");
  }

  // from = 0: the first step. bound = 0: none. Compares as float32, which the scale is: it reaches a bound only so.
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
  double reported_ = 0;  // the scale of the last report; 0: none yet
};
