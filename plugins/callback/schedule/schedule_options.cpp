#include "schedule_options.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

namespace {

using vernier::LearningRateSchedule;
using vernier::Options;

// A kind, and those of the options that it uses.
struct Kind {
  const char* name;
  std::vector<std::string> options;
};

const std::array<Kind, 12>& kinds() {
  static const std::array<Kind, 12> all = {{
      {"constant", {"warmup_steps"}},
      {"linear", {"warmup_steps", "decay_steps", "start_factor", "final_factor"}},
      {"cosine", {"warmup_steps", "decay_steps", "final_factor"}},
      {"polynomial", {"warmup_steps", "decay_steps", "final_factor", "power"}},
      {"exponential", {"warmup_steps", "gamma"}},
      {"step", {"warmup_steps", "gamma", "every"}},
      {"multi_step", {"warmup_steps", "gamma", "milestones"}},
      {"inverse_sqrt", {"warmup_steps", "timescale"}},
      {"warmup_stable_decay", {"warmup_steps", "decay_steps", "final_factor", "cooldown_steps", "shape"}},
      {"cosine_restarts", {"warmup_steps", "final_factor", "period", "multiplier"}},
      {"one_cycle", {"decay_steps", "final_factor", "initial_factor", "rise", "shape"}},
      {"plateau",
       {"warmup_steps", "metric", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown",
        "min_factor"}},
  }};
  return all;
}

const Kind& kind_named(const std::string& name) {
  return *std::ranges::find(kinds(), name, &Kind::name);
}

bool has(const Kind& kind, const std::string& option) {
  return std::ranges::find(kind.options, option) != kind.options.end();
}

// "linear", "cosine" or "polynomial", in quotes.
std::string kinds_with(const std::string& option) {
  std::vector<std::string> names;
  for (const auto& kind : kinds()) {
    if (has(kind, option)) names.push_back('"' + std::string(kind.name) + '"');
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

void refuse_of_other_kinds(const Options& options, const Kind& own) {
  for (const auto& kind : kinds()) {
    for (const auto& option : kind.options) {
      if (!options.given(option.c_str()) || has(own, option)) continue;
      options.refuse(option.c_str(), "is for kind = " + kinds_with(option));
    }
  }
}

// Refuses the lack of options that have no sensible default.
void refuse_missing(const Options& options, const LearningRateSchedule& schedule) {
  const auto needs = [&](const char* kind, const char* option, bool is_missing, const char* meaning) {
    if (schedule.kind != kind || !is_missing) return;
    options.refuse(option, c10::str("must be given with kind = \"", kind, "\": ", meaning));
  };
  needs("exponential", "gamma", !options.given("gamma"), "what each update multiplies by, such as 0.9999");
  needs("step", "every", schedule.every == 0, "the applied updates between two steps");
  needs("multi_step", "milestones", schedule.milestones.empty(), "the applied updates before each step");
  needs("cosine_restarts", "period", schedule.period == 0, "the applied updates of the first period");
}

}  // namespace

void refuse_contradictions(const Options& options, const LearningRateSchedule& schedule, bool is_phase) {
  if (is_phase && schedule.kind == "plateau") {
    options.refuse("kind", "is \"plateau\", which has no length; add a second [[callback]] use = \"schedule\" with it");
  }
  refuse_of_other_kinds(options, kind_named(schedule.kind));
  if (schedule.decay_steps != 0 && schedule.decay_steps <= schedule.warmup_steps) {
    options.refuse("decay_steps", "must be over `warmup_steps`, or 0");
  }
  refuse_missing(options, schedule);
  if (!std::ranges::is_sorted(schedule.milestones)) options.refuse("milestones", "must be in ascending order");
  if (schedule.kind == "one_cycle" && schedule.shape == "sqrt") {
    options.refuse("shape", "is \"sqrt\", and must be \"linear\" or \"cosine\" with kind = \"one_cycle\"");
  }
}

void refuse_beside_phases(const Options& options) {
  constexpr const char* reason = "belongs into each [[callback.phase]] where there are some";
  if (options.given("kind")) options.refuse("kind", reason);
  for (const auto& kind : kinds()) {
    for (const auto& option : kind.options) {
      if (options.given(option.c_str())) options.refuse(option.c_str(), reason);
    }
  }
}

LearningRateSchedule read_schedule(Options& options) {
  using vernier::above;
  using vernier::at_least;
  LearningRateSchedule schedule;
  schedule.kind = options.choose("kind", "cosine",
                                 {"constant", "linear", "cosine", "polynomial", "exponential", "step", "multi_step",
                                  "inverse_sqrt", "warmup_stable_decay", "cosine_restarts", "one_cycle", "plateau"},
                                 "schedule after the warm-up");
  const auto count = [&](const char* key, const char* meaning) { return options.get(key, 0, meaning, at_least(0)); };
  const auto part = [&](const char* key, double fallback, const char* meaning) {
    return options.get(key, fallback, meaning, vernier::between(0, 1));
  };
  schedule.warmup_steps = count("warmup_steps", "applied updates until the full learning rate");
  schedule.decay_steps = count("decay_steps", "applied updates until final_factor, warm-up included; 0: all planned");
  schedule.final_factor = part("final_factor", 0.0, "share of the learning rate at the end");
  schedule.start_factor = part("start_factor", 1.0, "linear: share of the learning rate at the start");
  schedule.power = options.get("power", 1.0, "polynomial: exponent", above(0));
  schedule.gamma = options.get("gamma", 0.1, "exponential, step, multi_step: what a step multiplies by", above(0));
  schedule.every = count("every", "step: applied updates between two steps");
  schedule.milestones = options.get("milestones", std::vector<std::int64_t>{},
                                    "multi_step: applied updates before each step, warm-up included", at_least(1));
  schedule.timescale = count("timescale", "inverse_sqrt: the rate is halved after three of these; 0: as warmup_steps");
  schedule.cooldown_steps = count("cooldown_steps", "warmup_stable_decay: applied updates of the decay; 0: a tenth");
  schedule.shape = options.choose("shape", "cosine", {"linear", "cosine", "sqrt"},
                                  "warmup_stable_decay, one_cycle: how the rate falls and rises");
  schedule.period = count("period", "cosine_restarts: applied updates of the first period");
  schedule.multiplier =
      options.get("multiplier", 1, "cosine_restarts: each period is so many times as long", at_least(1));
  schedule.initial_factor = part("initial_factor", 0.04, "one_cycle: share of the learning rate at the start");
  schedule.rise = part("rise", 0.3, "one_cycle: share of the updates in which the rate rises");
  return schedule;
}
