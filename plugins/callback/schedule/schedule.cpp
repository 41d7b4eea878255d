// schedule: changes the learning rate over the run. docs/guides/schedules.md has a formula and a picture of each kind,
// and PyTorch's name for it. The schedule counts applied updates: a skipped update does not advance it.
//   kind = "cosine"      constant | linear | cosine | polynomial | exponential | step | multi_step | inverse_sqrt |
//                        warmup_stable_decay | cosine_restarts | one_cycle | plateau
//   warmup_steps = 0     applied updates from 1/(warmup_steps + 1) of the rate to the full rate; all but one_cycle
//   decay_steps = 0      applied updates, warm-up included, until final_factor is reached; 0: all that are planned
//   final_factor = 0.0   of the learning rate, where the decay ends
//   start_factor = 1.0   linear: of the learning rate, where the schedule begins
//   power = 1.0          polynomial
//   gamma = 0.1          step, multi_step: what each step multiplies by; exponential: each update, must be given there
//   every = 0            step: applied updates between two steps; must be given
//   milestones = []      multi_step: applied updates before each step, warm-up included; must be given
//   timescale = 0        inverse_sqrt: 1 / sqrt(1 + updates / timescale); 0: warmup_steps, or 10000 if there are none
//   cooldown_steps = 0   warmup_stable_decay: applied updates of the decay, the last ones; 0: a tenth of the schedule
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
//   replan = false       a run that is resumed with other steps goes on as if these had been planned from the start; if
//                        false, it keeps the schedule that it began with
//   phase = []           several schedules in sequence: [[callback.phase]] tables, each with `updates`, and with a kind
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

#include "plateau.h"
#include "schedule_options.h"

namespace {

using vernier::LearningRateSchedule;
using vernier::Options;
using vernier::Run;

struct Phase {
  LearningRateSchedule schedule;
  std::int64_t updates = 0;  // 0: all that are left
};

class Schedule final : public vernier::Callback {
 public:
  explicit Schedule(Options& options) : schedule_(read_schedule(options)), plateau_(options) {
    options.tables("phase", "several schedules in sequence, each with `updates`, a kind and its options",
                   [this](Options& one) { read_phase(one); });
    replan_ = options.get("replan", false, "resumed with other steps: as if these had been planned from the start");
    options.resumable("replan");
    options_ = options;
    options.given("phase") ? refuse_beside_phases(options) : refuse_contradictions(options, schedule_, false);
  }

  void attach(vernier::Bus& bus) override {
    using vernier::Event;
    // run.updates is saved and resumed by the runner.
    bus.on(Event::StepBegin, [this](Run& run) {
      note_other_plan(run);
      if (planned_ == 0) planned_ = run.steps;
      run.learning_rate_factor *= factor(run.updates, planned_);
    });
    if (!is_plateau()) return;
    bus.on(Event::Validated, [this](Run& run) {
      auto& metric = plateau_.metric();
      if (!plateau_.look(metric.value(run))) return;
      info("after step ", run.step, " the learning rate is multiplied by ", plateau_.factor(), ": ", metric.name(),
           " has not improved");
    });
  }
  void check(const Run& run) override {
    refuse_beyond_end(run);
    if (!is_plateau()) return;
    plateau_.metric().check(run);
    const auto needed = plateau_.patience() + 3;  // the best one, those that are no better, and one after these
    if (run.validations == 0 || run.validations >= needed) return;
    warn("kind = \"plateau\" cannot lower the learning rate in this run: validations planned: ", run.validations,
         ", and patience = ", plateau_.patience(), " needs ", needed, "; lower `patience` or [run] validate_every");
  }

  vernier::State save() const override {
    auto state = is_plateau() ? plateau_.save() : vernier::State();
    state.put("planned", planned_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (is_plateau() && state.has("factor")) plateau_.load(state);  // else another kind saved it
    planned_ = state.has("planned") ? state.integer("planned") : 0;
  }

 private:
  bool is_plateau() const { return phases_.empty() && schedule_.kind == "plateau"; }

  void read_phase(Options& one) {
    if (!phases_.empty() && phases_.back().updates == 0) {
      one.refuse("updates", "of the phase before must be given, for only the last one lasts to the end of the run");
    }
    const auto updates =
        one.get("updates", 0, "applied updates of the phase; 0: all that are left", vernier::at_least(0));
    phases_.push_back({read_schedule(one), updates});
    refuse_contradictions(one, phases_.back().schedule, true);
  }

  // Refuses a warm-up or a phase that the run is too short for.
  void refuse_beyond_end(const Run& run) const {
    if (run.steps == 0) return;
    const auto refuse_warmup = [&](const LearningRateSchedule& schedule, std::int64_t updates) {
      if (schedule.warmup_steps <= updates) return;
      options_.refuse("warmup_steps",
                      c10::str("is ", schedule.warmup_steps, ", and the ", phases_.empty() ? "run" : "phase", " has ",
                               updates, " updates; lower it, or train longer"));
    };
    if (phases_.empty()) refuse_warmup(schedule_, run.steps);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      const auto& [schedule, updates] = phases_[i];
      if (begin >= run.steps) {
        options_.refuse("phase",
                        c10::str("has a ", i + 1, ". one that begins after ", begin, " updates, and the run has ",
                                 run.steps, " steps; shorten those before it, or train longer"));
      }
      refuse_warmup(schedule, updates != 0 ? updates : run.steps - begin);
      begin += updates;
    }
  }

  // Once, where a run is resumed with other steps than were planned.
  void note_other_plan(const Run& run) {
    if (planned_ == 0 || planned_ == run.steps) return;
    const auto before = factor(run.updates > 0 ? run.updates - 1 : 0, planned_);
    const auto kept = factor(run.updates, planned_), other = factor(run.updates, run.steps);
    if (kept != other && noted_ != run.steps) {
      const auto from = c10::str("planned updates were ", planned_, " and are ", run.steps);
      if (replan_) {
        warn(from, ": the learning rate goes from ", before, " to ", other, " times the optimizer's");
      } else {
        const bool is_first = id().find('#') == std::string::npos;  // --set reaches no other
        warn(from, ": the schedule of ", planned_, " is kept, and the learning rate is ", kept,
             " times the optimizer's", kept == 0 && run.updates >= planned_ ? ", so nothing more is learned" : "",
             is_first ? "; --set callback.schedule.replan=true" : "; replan = true in its [[callback]]", " goes to ",
             other, " times, as if ", run.steps, " had been planned");
      }
    }
    noted_ = run.steps;
    if (replan_) planned_ = run.steps;
  }

  // done: applied updates. planned: the run's steps.
  double factor(std::int64_t done, std::int64_t planned) const {
    if (phases_.empty()) return learning_rate_factor(schedule_, done, planned) * plateau_.factor();
    std::int64_t begin = 0;
    for (const auto& phase : phases_) {
      const bool is_last = &phase == &phases_.back();
      if (is_last || done < begin + phase.updates) {
        const auto length = phase.updates != 0 ? phase.updates : std::max<std::int64_t>(1, planned - begin);
        return learning_rate_factor(phase.schedule, done - begin, length);
      }
      begin += phase.updates;
    }
    return 1;
  }

  LearningRateSchedule schedule_;
  Plateau plateau_;
  std::vector<Phase> phases_;
  Options options_{"", {}, ""};  // for messages
  bool replan_ = false;
  std::int64_t planned_ = 0;  // the steps that the schedule is for, from the first step on
  std::int64_t noted_ = 0;    // the other steps that a line was logged about
};

}  // namespace

VERNIER_PLUGIN(Schedule, "schedule", "2.0.0")
