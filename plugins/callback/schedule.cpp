// schedule: changes the learning rate over the run. After a linear warm-up the rate is constant, or falls linearly or
// by a cosine to a final factor. The schedule counts applied updates: a skipped update does not advance it.
//   kind = "cosine"      constant | linear | cosine
//   warmup_steps = 0     applied updates from 1/(warmup_steps + 1) of the rate to the full rate
//   decay_steps = 0      applied updates, warm-up included, until final_factor is reached; 0: all that are planned
//   final_factor = 0.0   of the learning rate, where the decay ends
// Source of the cosine: Loshchilov and Hutter, SGDR, ICLR 2017.
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <numbers>

class Schedule final : public vernier::Callback {
 public:
  explicit Schedule(vernier::Options& options)
      : kind_(options.choose("kind", "cosine", {"constant", "linear", "cosine"}, "course after the warm-up")),
        warmup_(options.get("warmup_steps", 0, "applied updates until the full learning rate", vernier::at_least(0))),
        decay_(options.get("decay_steps", 0, "applied updates until final_factor, warm-up included; 0: all planned",
                           vernier::at_least(0))),
        final_(options.get("final_factor", 0.0, "share of the learning rate at the end", vernier::between(0, 1))) {
    for (const char* key : {"decay_steps", "final_factor"}) {
      if (kind_ == "constant" && options.given(key)) options.refuse(key, "is for kind = \"linear\" or \"cosine\"");
    }
    if (decay_ != 0 && decay_ <= warmup_) options.refuse("decay_steps", "must be over `warmup_steps`, or 0");
  }

  void attach(vernier::Bus& bus) override {
    // run.updates is saved and resumed by the runner, so this plugin has nothing to remember.
    bus.on(vernier::Event::StepBegin, [this](vernier::Run& run) { run.learning_rate_factor *= factor(run); });
  }

 private:
  double factor(const vernier::Run& run) const {
    const auto done = static_cast<double>(run.updates);
    const auto warmup = static_cast<double>(warmup_);
    if (done < warmup) return (done + 1) / (warmup + 1);
    if (kind_ == "constant") return 1;
    const auto end = static_cast<double>(decay_ != 0 ? decay_ : run.steps);
    const double progress = std::clamp((done - warmup) / std::max(end - warmup, 1.0), 0.0, 1.0);
    const double share = kind_ == "linear" ? 1 - progress : (1 + std::cos(std::numbers::pi * progress)) / 2;
    return final_ + (1 - final_) * share;
  }

  std::string kind_;
  std::int64_t warmup_, decay_;
  double final_;
};

VERNIER_PLUGIN(Schedule, "schedule", "1.0.0")
