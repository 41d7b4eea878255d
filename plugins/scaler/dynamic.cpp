// dynamic: raises the scale until gradients overflow, and then lowers it. A step whose gradients have an inf or NaN is
// skipped, and its scale is multiplied by backoff_factor. After growth_interval steps in a row without one, the scale
// is multiplied by growth_factor. This is the rule of torch.amp.GradScaler. A preset is the rule of another project
// with its defaults, and each option may be set beside it. docs/guides/scalers.md describes each rule and its source.
//   preset = "none"       none, pytorch, deepspeed, megatron or apex; none: PyTorch's rule with a lower bound
//   init_scale = 65536    megatron: 2^32
//   growth_factor = 2, backoff_factor = 0.5
//   growth_interval = 2000   deepspeed, megatron: 1000
//   window = 0            the other name of growth_interval; if both are given, they must be equal
//   min_scale = 6.103515625e-05   0: none; pytorch, apex: none; deepspeed, megatron: 1
//   max_scale = 0         0: none; apex: 2^24; init_scale: the scale starts at its ceiling
//   hysteresis = 1        the overflow at which the scale is lowered; those before it only skip their updates;
//                         deepspeed, megatron: 2
//   refill = "growth"     when overflows are counted anew: when the scale grows, or at each good_step
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100   see scale_watch.h
// The scale stays at min_scale, or without a minimum at float32's smallest normal number. Only overflows_in_a_row ends
// a run there, with preset deepspeed too, where DeepSpeed itself raises an error at an overflow at its minimum. The
// minimum of preset none, 2^-14, is float16's smallest normal number: at a smaller scale the gradient of the loss
// itself loses digits. At a scale of 2^40 even the largest gradient that does not overflow would be 0 in float16
// without it.
#include "scale_watch.h"

namespace {

vernier::LossScaleOptions read_law(vernier::Options& options) {
  using namespace vernier;
  const auto preset = options.choose("preset", "none", {"none", "pytorch", "deepspeed", "megatron", "apex"},
                                     "whose rule and defaults; none: PyTorch's rule with a minimum");
  LossScaleOptions law;
  if (preset != "none") law = loss_scale_preset(preset);
  if (preset == "none") law.min_scale = 0x1p-14;
  law.init_scale = options.get("init_scale", law.init_scale, "scale of the first step", above(0));
  law.growth_factor =
      options.get("growth_factor", law.growth_factor, "what the scale is multiplied by to grow", above(1));
  if (law.growth_factor > 0x1p16) {
    options.refuse("growth_factor", "is beyond 65536: one step would leave all of float16's range");
  }
  law.backoff_factor = options.get("backoff_factor", law.backoff_factor,
                                   "what the scale is multiplied by after an overflow", between(1e-6, 0.999999));
  law.growth_interval = options.get("growth_interval", law.growth_interval,
                                    "steps without an overflow until the scale grows", between(1, 1'000'000'000));
  const auto window =
      options.get("window", 0, "another name of growth_interval; 0: that one holds", between(0, 1'000'000'000));
  if (window > 0 && options.given("growth_interval") && window != law.growth_interval) {
    options.refuse("window", c10::str("= ", window, " and `growth_interval` = ", law.growth_interval,
                                      " are two names of one interval; give one of them, or both one value"));
  }
  if (window > 0) law.growth_interval = window;
  law.min_scale = options.get("min_scale", law.min_scale, "the scale goes no lower; 0: none", at_least(0));
  law.max_scale = options.get("max_scale", law.max_scale, "the scale goes no higher; 0: none", at_least(0));
  law.hysteresis =
      options.get("hysteresis", law.hysteresis, "the overflow at which the scale backs off", between(1, 1'000'000));
  const auto refill = options.choose("refill", "growth", {"growth", "good_step"}, "when overflows are counted anew");
  if (options.given("refill") && law.hysteresis == 1) {
    options.refuse("refill",
                   "says when hysteresis starts anew, and hysteresis = 1 has none; raise it, or leave this out");
  }
  if (refill == "good_step") law.refill = Refill::good_step;
  if (const auto [option, reason] = contradiction(law); !option.empty()) {
    const bool is_window = option == "growth_interval" && window > 0;
    options.refuse(is_window ? "window" : option.c_str(), reason);
  }
  return law;
}

}  // namespace

class DynamicScaler final : public WatchedScaler {
 public:
  explicit DynamicScaler(vernier::Options& options) : WatchedScaler(options), law_(read_law(options)) {
    remember("", scale_);
    if (most_overflows() == 0 || law_.hysteresis <= most_overflows()) return;
    options.refuse("overflows_in_a_row", c10::str("is ", most_overflows(), ", and hysteresis = ", law_.hysteresis,
                                                  ": the run would end before the scale is lowered"));
  }

  void prepare(vernier::Run& run) override {
    scale_.emplace(run.device, law_);
    watch(run, scale_->value(), law_.min_scale, law_.max_scale);
  }
  void update(vernier::Run& run) override { scale_->update(run.found_inf); }
  Current current() const override { return {scale_->tensor(), scale_->growth_tracker()}; }

 private:
  double next() override { return scale_->value(); }

  vernier::LossScaleOptions law_;
  std::optional<vernier::LossScale> scale_;
};

VERNIER_PLUGIN(DynamicScaler, "dynamic", "1.1.0")
