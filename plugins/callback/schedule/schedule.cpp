// schedule: changes the learning rate over the run. docs/schedules.md has a formula and a picture of each kind, and
// PyTorch's name for it. The schedule counts applied updates: a skipped update does not advance it.
//   kind = "cosine"      constant | linear | cosine | polynomial | exponential | step | multi_step | inverse_sqrt |
//                        warmup_stable_decay | cosine_restarts | one_cycle | plateau
//   warmup_steps = 0     applied updates from 1/(warmup_steps + 1) of the rate to the full rate; all but one_cycle
//   decay_steps = 0      applied updates, warm-up included, until final_factor is reached; 0: all that are planned
//   final_factor = 0.0   of the learning rate, where the decay ends
//   start_factor = 1.0   linear: of the learning rate, where the course begins
//   power = 1.0          polynomial
//   gamma = 0.1          step, multi_step: what each step multiplies by; exponential: each update, must be given there
//   every = 0            step: applied updates between two steps; must be given
//   milestones = []      multi_step: applied updates before each step, warm-up included; must be given
//   timescale = 0        inverse_sqrt: 1 / sqrt(1 + updates / timescale); 0: warmup_steps, or 10000 if there are none
//   cooldown_steps = 0   warmup_stable_decay: applied updates of the decay, the last ones; 0: a tenth of the course
//   shape = "cosine"     warmup_stable_decay, one_cycle: linear | cosine | sqrt (only of the decay: 1 - sqrt)
//   period = 0           cosine_restarts: applied updates of the first period; must be given
//   multiplier = 1       cosine_restarts: each period is so many times as long as the one before
//   initial_factor = 0.04   one_cycle: of the learning rate, where it begins
//   rise = 0.3           one_cycle: share of the updates in which the rate rises
// Of plateau, which lowers the rate when a validation's metric stops improving:
//   metric = "validation_loss", mode = "auto"   min | max: what is better; auto: as the metric has it
//   factor = 0.1         what a reduction multiplies by
//   patience = 10        validations without improvement that are let pass
//   threshold = 1e-4, threshold_mode = "relative"   least improvement that counts: relative | absolute
//   cooldown = 0         validations after a reduction that do not count
//   min_factor = 0.0     of the learning rate, below which it is not lowered
//   phase = []           several courses in sequence: [[callback.phase]] tables, each with `updates`, and with a kind
//                        and its options instead of those of [[callback]]
// A phase has these; its options count from its beginning, and what is planned is its length:
//   phase.updates = 0    applied updates of the phase; 0, only in the last: all that are left
//   phase.kind = "cosine", phase.warmup_steps = 0, phase.decay_steps = 0, phase.final_factor = 0.0,
//   phase.start_factor = 1.0, phase.power = 1.0, phase.gamma = 0.1, phase.every = 0, phase.milestones = [],
//   phase.timescale = 0, phase.cooldown_steps = 0, phase.shape = "cosine", phase.period = 0, phase.multiplier = 1,
//   phase.initial_factor = 0.04, phase.rise = 0.3
// Sources: torch.optim.lr_scheduler; Loshchilov and Hutter, SGDR, ICLR 2017 (cosine, cosine_restarts); Smith and Topin,
// Super-Convergence, 2018 (one_cycle); Vaswani et al., NeurIPS 2017 (inverse_sqrt); Hu et al., MiniCPM, 2024, and
// Haegele et al., NeurIPS 2024 (warmup_stable_decay).
#include <vernier/sdk.h>

#include "courses.h"
#include "plateau.h"

namespace {

using vernier::Options;
using vernier::Run;

struct Phase {
  Course course;
  std::int64_t updates = 0;  // 0: all that are left
};

class Schedule final : public vernier::Callback {
 public:
  explicit Schedule(Options& options) : course_(read_course(options)), plateau_(options) {
    options.tables("phase", "several courses in sequence, each with `updates`, a kind and its options",
                   [this](Options& one) { read_phase(one); });
    options.given("phase") ? refuse_beside_phases(options) : refuse_contradictions(options, course_, false);
  }

  void attach(vernier::Bus& bus) override {
    using vernier::Event;
    // run.updates is saved and resumed by the runner.
    bus.on(Event::StepBegin, [this](Run& run) { run.learning_rate_factor *= factor(run); });
    if (!is_plateau()) return;
    bus.on(Event::Validated, [this](Run& run) {
      auto& metric = plateau_.metric();
      if (!plateau_.look(metric.value(run))) return;
      info("after step ", run.step, " the learning rate is multiplied by ", plateau_.factor(), ": ", metric.name(),
           " has not improved");
    });
  }
  void check(const Run& run) override {
    if (!is_plateau()) return;
    plateau_.metric().check(run);
    const auto needed = plateau_.patience() + 3;  // the best one, those that are no better, and one after these
    if (run.validations == 0 || run.validations >= needed) return;
    warn("kind = \"plateau\" cannot lower the learning rate in this run: validations planned: ", run.validations,
         ", and patience = ", plateau_.patience(), " needs ", needed, "; lower `patience` or [run] validate_every");
  }

  vernier::State save() const override { return is_plateau() ? plateau_.save() : vernier::State(); }
  void load(const vernier::State& state) override {
    if (is_plateau() && state.has("factor")) plateau_.load(state);  // else another kind saved it
  }

 private:
  bool is_plateau() const { return phases_.empty() && course_.kind == "plateau"; }

  void read_phase(Options& one) {
    if (!phases_.empty() && phases_.back().updates == 0) {
      one.refuse("updates", "of the phase before must be given, for only the last one lasts to the end of the run");
    }
    const auto updates =
        one.get("updates", 0, "applied updates of the phase; 0: all that are left", vernier::at_least(0));
    phases_.push_back({read_course(one), updates});
    refuse_contradictions(one, phases_.back().course, true);
  }

  double factor(const Run& run) const {
    if (phases_.empty()) return factor_of(course_, run.updates, run.steps) * plateau_.factor();
    std::int64_t begin = 0;
    for (const auto& phase : phases_) {
      const bool is_last = &phase == &phases_.back();
      if (is_last || run.updates < begin + phase.updates) {
        const auto length = phase.updates != 0 ? phase.updates : std::max<std::int64_t>(1, run.steps - begin);
        return factor_of(phase.course, run.updates - begin, length);
      }
      begin += phase.updates;
    }
    return 1;
  }

  Course course_;
  Plateau plateau_;
  std::vector<Phase> phases_;
};

}  // namespace

VERNIER_PLUGIN(Schedule, "schedule", "2.0.0")
