// alarm: warns when a metric crosses a line, by the notice `alarm`, which every monitor shows. It warns once, and again
// after the metric was on the right side in between. It changes nothing in the run.
//   metric         required: a metric by name, or "loss"; it is looked at after each step and each validation
//   above = inf    warns when the metric is above it
//   below = -inf   warns when the metric is below it
//   from = 1       the first step that is looked at
//
//   [[callback]]
//   use = "alarm"
//   metric = "overflow_rate"
//   above = 0.1
//
// The host waits for the device in each step, unless the metric is counted on the host, such as overflow_rate.
#include "metric_line.h"

using vernier::Run;

class Alarm final : public vernier::Callback {
 public:
  explicit Alarm(vernier::Options& options)
      : line_(options), from_(options.get("from", 1, "the first step that is looked at", vernier::at_least(1))) {
    remember("is_crossed", is_crossed_);
    if (options.given("from") && !line_.is_given()) options.refuse("metric", "is needed: what to look at");
  }

  void attach(vernier::Bus& bus) override {
    line_.follow(bus, *this, [this](Run& run) { look(run); });
  }
  void check(const Run& run) override {
    if (!line_.is_given()) vernier::refuse(id() + ": `metric` is needed, and a line: `above` or `below`", id());
    line_.check(run, *this);
    if (run.steps > 0 && from_ > run.steps)
      warn("it never looks: from = ", from_, ", and the run has ", run.steps, " steps");
  }

 private:
  void look(Run& run) {
    if (run.step < from_) return;
    const auto value = line_.value(run);
    if (!value) return;
    const bool was_crossed = std::exchange(is_crossed_, line_.is_crossed(*value));
    if (!is_crossed_ || was_crossed) return;
    run.notice("alarm", {{"metric", line_.metric()}, {"value", *value}},
               c10::str(line_.metric(), " is ", *value, ", ", line_.side(*value)));
  }

  MetricLine line_;
  std::int64_t from_;
  bool is_crossed_ = false;
};

VERNIER_PLUGIN(Alarm, "alarm", "1.0.0")
