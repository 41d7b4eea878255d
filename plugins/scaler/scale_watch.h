// Shared by all loss scalers. They set the metrics "scale", of this step, and "underflow", which the trainer counts
// into run.amp. They report changes of the scale, warn if it is very low or high, and end a run whose updates all
// overflow.
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100
#pragma once

#include <vernier/loss_scale.h>
#include <vernier/sdk.h>
#include <vernier/unscale.h>

#include <utility>
#include <vector>

class WatchedScaler : public vernier::Scaler {
 public:
  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "scale", .meaning = "factor by which the loss is multiplied before backward"},
            {.name = "underflow", .unit = "ratio", .meaning = "share of the gradients that become 0 in 16 bits"}};
  }
  // On a GPU next() makes the host wait. So it is read there only when a skipped update has become known, and every
  // hundred steps.
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) {
      count_overflows(run);
      const bool reads = !run.results_are_late || run.step % 100 == 1 || vernier::is_skipped(run.last_update);
      if (reads) report(run, next());
    });
  }
  torch::Tensor scale(const torch::Tensor& loss) override { return loss * current().scale; }
  void unscale(vernier::Run& run) override {
    const auto scale = current().scale;
    run.metrics.set("scale", scale.clone());  // a copy, since update() may change the tensor in place
    measure_underflow(run);
    vernier::unscale(run, scale);
  }

 protected:
  explicit WatchedScaler(vernier::Options& options)
      : measure_every_(options.get("measure_every", 100, "steps between measurements of underflow; 0: none",
                                   vernier::at_least(0))),
        most_overflows_(options.get("overflows_in_a_row", 200, "the run ends after so many skipped for it; 0: never",
                                    vernier::at_least(0))),
        below_(options.get("warn_below", 1.0, "a notice where the scale is or comes that low; 0: none",
                           vernier::at_least(0))),
        above_(options.get("warn_above", 0x1p40, "a notice where the scale is or comes that high; 0: none",
                           vernier::at_least(0))) {
    if (below_ > 0 && above_ > 0 && below_ >= above_) {
      options.refuse("warn_below", c10::str("is not below warn_above = ", above_));
    }
    // The scale of the last report is saved, because on a GPU a change may be reported a hundred steps late.
    remember("start", start_), remember("reported", reported_), remember("overflows_seen", seen_);
    // A row that has ended a run starts again from 0, since the user may have removed its cause.
    remember([this](vernier::State& state) { state.put("overflows_in_a_row", in_a_row_); },
             [this](const vernier::State& state) {
               in_a_row_ = state.integer("overflows_in_a_row");
               if (in_a_row_ >= most_overflows_) in_a_row_ = 0;
             });
  }

  virtual double next() = 0;  // the scale of the next step
  // Called in prepare. scale: that of the first step. least, most: the ends of its range; 0: none.
  void watch(const vernier::Run& run, double scale, double least = 0, double most = 0) {
    seen_ = run.amp.overflow_count();
    start_ = scale;
    least_ = least;
    most_ = most;
    reported_ = 0;
  }
  std::int64_t most_overflows() const { return most_overflows_; }  // in a row; 0: no bound

 private:
  // Called while the gradients are still scaled.
  void measure_underflow(vernier::Run& run) const {
    if (measure_every_ == 0 || (run.step + 1) % measure_every_ != 0) return;
    const auto share = vernier::underflow_share(run.gradients());
    if (share.defined()) run.metrics.set("underflow", share);
  }

  // Ends a run in which nothing is learned any more. Where results are late, the overflow is that of the step before.
  void count_overflows(vernier::Run& run) {
    const auto before = std::exchange(seen_, run.amp.overflow_count());
    in_a_row_ = seen_ > before ? in_a_row_ + 1 : 0;
    if (most_overflows_ == 0 || in_a_row_ < most_overflows_) return;
    run.control->fail(
        *this, c10::str("the gradients of ", in_a_row_,
                        " updates in a row overflowed (overflows_in_a_row); the loss diverged, or a layer computes "
                        "what is not finite: lower the learning rate, compute that layer in fp32 by a "
                        "[[precision.rule]], or go back to an earlier checkpoint"));
  }

  void report(vernier::Run& run, double now) {
    if (reported_ == 0) {
      warn_of(run, 0, start_);
      reported_ = start_;
    }
    if (now == reported_) return;
    const double before = std::exchange(reported_, now);
    run.notice("scale_changed", {{"from", before}, {"to", now}},
               c10::str("the loss scale changed from ", before, " to ", now));
    warn_of(run, before, now);
  }

  // A run that starts at min_scale or max_scale gets no warning for it: the user chose both.
  void warn_of(vernier::Run& run, double from, double to) const {
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

  std::int64_t measure_every_, most_overflows_, in_a_row_ = 0;
  std::int64_t seen_ = 0;  // the run's overflows at the last StepEnd; a rewind puts both back
  double below_, above_;
  double start_ = 0, least_ = 0, most_ = 0;
  double reported_ = 0;  // the scale of the last report; 0: none yet
};
