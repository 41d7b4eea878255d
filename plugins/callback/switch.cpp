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
#include "metric_line.h"

class Switch final : public vernier::Callback {
 public:
  explicit Switch(vernier::Options& options)
      : at_step_(options.get("at_step", 0, "switches after so many steps; 0: not by the step", vernier::at_least(0))),
        line_(options),
        to_(options.require<vernier::Table>("to", "by role the table of its plugin from then on")) {
    remember("has_switched", has_switched_);
    if (options.given("to") && !line_.is_given() && at_step_ == 0) {
      options.refuse("at_step", "or `metric` must say when to switch");
    }
  }

  void attach(vernier::Bus& bus) override {
    line_.follow(bus, *this, [this](vernier::Run& run) { look(run); });
  }
  void prepare(vernier::Run& run) override { run.control->try_swap(to_); }
  void check(const vernier::Run& run) override {
    if (has_switched_) return;
    if (line_.is_given()) {
      line_.check(run, *this);
    } else if (run.steps > 0 && at_step_ >= run.steps) {
      warn("it never acts: at_step = ", at_step_, ", and the run has ", run.steps, " steps");
    }
  }

 private:
  void look(vernier::Run& run) {
    if (has_switched_ || !(run.step == at_step_ || has_crossed(run))) return;
    has_switched_ = true;
    run.control->swap(to_);
  }
  bool has_crossed(const vernier::Run& run) {
    if (!line_.is_given()) return false;
    const auto value = line_.value(run);
    return value && line_.is_crossed(*value);
  }

  std::int64_t at_step_;
  MetricLine line_;
  vernier::Table to_;
  bool has_switched_ = false;
};

VERNIER_PLUGIN(Switch, "switch", "1.0.0")
