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

class ScaleWatch {
 public:
  explicit ScaleWatch(vernier::Options& options)
      : meter(options),
        below_(options.get("warn_below", 1.0, "a notice where the scale comes down to it; 0: none",
                           vernier::at_least(0))),
        above_(options.get("warn_above", 0x1p40, "a notice where the scale comes up to it; 0: none",
                           vernier::at_least(0))) {
    if (below_ > 0 && above_ > 0 && below_ >= above_) {
      options.refuse("warn_below", c10::str("is not below warn_above = ", above_));
    }
  }

  void start(double scale) { told_ = scale; }

  // Reading the scale is free on the CPU. On a GPU the host would wait, so there it is read when a skip has become
  // known, and every hundred steps.
  static bool is_time(const vernier::Run& run) {
    const auto is_skip = [](const vernier::Notice& notice) { return notice.name == "step_skipped"; };
    return run.device.is_cpu() || run.step % 100 == 0 || std::ranges::any_of(run.notices, is_skip);
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

  const UnderflowMeter meter;

 private:
  double below_, above_;
  double told_ = 0;
};
