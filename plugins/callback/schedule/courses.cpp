#include "courses.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace {

using vernier::Options;

// For `progress` from 0 to 1: from 1 to 0.
double falling(const std::string& shape, double progress) {
  if (shape == "linear") return 1 - progress;
  if (shape == "sqrt") return 1 - std::sqrt(progress);
  return (1 + std::cos(std::numbers::pi * progress)) / 2;
}

double between(double from, double to, double share_of_from) {
  return to + (from - to) * share_of_from;
}

double share(double part, double whole) {
  return std::clamp(part / std::max(whole, 1.0), 0.0, 1.0);
}

// In what follows, t counts the applied updates since the warm-up, and length is that of the course without it.
using Function = double (*)(const Course& course, double t, double length);

double constant(const Course&, double, double) {
  return 1;
}

double linear(const Course& course, double t, double length) {
  return between(course.start_factor, course.final_factor, 1 - share(t, length));
}

double cosine(const Course& course, double t, double length) {
  return between(1, course.final_factor, falling("cosine", share(t, length)));
}

double polynomial(const Course& course, double t, double length) {
  return between(1, course.final_factor, std::pow(1 - share(t, length), course.power));
}

double exponential(const Course& course, double t, double) {
  return std::pow(course.gamma, t);
}

double step(const Course& course, double t, double) {
  return std::pow(course.gamma, std::floor(t / static_cast<double>(course.every)));
}

double multi_step(const Course& course, double t, double) {
  const double done = t + static_cast<double>(course.warmup_steps);
  const auto is_passed = [&](std::int64_t milestone) { return static_cast<double>(milestone) <= done; };
  return std::pow(course.gamma, std::ranges::count_if(course.milestones, is_passed));
}

double inverse_sqrt(const Course& course, double t, double) {
  constexpr double without_warmup = 10'000;
  const auto given = static_cast<double>(course.timescale != 0 ? course.timescale : course.warmup_steps);
  const double timescale = given > 0 ? given : without_warmup;
  return std::sqrt(timescale / (timescale + t));
}

double warmup_stable_decay(const Course& course, double t, double length) {
  const auto given = static_cast<double>(course.cooldown_steps);
  const double cooldown = given > 0 ? std::min(given, length) : std::ceil(length / 10);
  const double stable = length - cooldown;
  return t < stable ? 1 : between(1, course.final_factor, falling(course.shape, share(t - stable, cooldown)));
}

double cosine_restarts(const Course& course, double t, double) {
  auto period = static_cast<double>(course.period);
  if (course.multiplier == 1) {
    t = std::fmod(t, period);
  } else {
    for (; t >= period; period *= static_cast<double>(course.multiplier)) t -= period;
  }
  return between(1, course.final_factor, falling("cosine", t / period));
}

// The highest and the last point are one update earlier than the shares of the length say, as in PyTorch.
double one_cycle(const Course& course, double t, double length) {
  const double top = course.rise * length - 1, end = length - 1;
  if (t <= top) {
    return between(course.initial_factor, 1, falling(course.shape, top > 0 ? t / top : 1));
  }
  const double progress = end > top ? std::clamp((t - top) / (end - top), 0.0, 1.0) : 1;
  return between(1, course.final_factor, falling(course.shape, progress));
}

struct Kind {
  const char* name;
  Function factor;
  std::vector<std::string> options;
};

const std::array<Kind, 12>& kinds() {
  static const std::array<Kind, 12> all = {{
      {"constant", constant, {"warmup_steps"}},
      {"linear", linear, {"warmup_steps", "decay_steps", "start_factor", "final_factor"}},
      {"cosine", cosine, {"warmup_steps", "decay_steps", "final_factor"}},
      {"polynomial", polynomial, {"warmup_steps", "decay_steps", "final_factor", "power"}},
      {"exponential", exponential, {"warmup_steps", "gamma"}},
      {"step", step, {"warmup_steps", "gamma", "every"}},
      {"multi_step", multi_step, {"warmup_steps", "gamma", "milestones"}},
      {"inverse_sqrt", inverse_sqrt, {"warmup_steps", "timescale"}},
      {"warmup_stable_decay",
       warmup_stable_decay,
       {"warmup_steps", "decay_steps", "final_factor", "cooldown_steps", "shape"}},
      {"cosine_restarts", cosine_restarts, {"warmup_steps", "final_factor", "period", "multiplier"}},
      {"one_cycle", one_cycle, {"decay_steps", "final_factor", "initial_factor", "rise", "shape"}},
      {"plateau",
       constant,
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
void refuse_missing(const Options& options, const Course& course) {
  const auto needs = [&](const char* kind, const char* option, bool is_missing, const char* meaning) {
    if (course.kind != kind || !is_missing) return;
    options.refuse(option, c10::str("must be given with kind = \"", kind, "\": ", meaning));
  };
  needs("exponential", "gamma", !options.given("gamma"), "what each update multiplies by, such as 0.9999");
  needs("step", "every", course.every == 0, "the applied updates between two steps");
  needs("multi_step", "milestones", course.milestones.empty(), "the applied updates before each step");
  needs("cosine_restarts", "period", course.period == 0, "the applied updates of the first period");
}

}  // namespace

void refuse_contradictions(const Options& options, const Course& course, bool is_phase) {
  if (is_phase && course.kind == "plateau") {
    options.refuse("kind", "is \"plateau\", which has no length; add a second [[callback]] use = \"schedule\" with it");
  }
  refuse_of_other_kinds(options, kind_named(course.kind));
  if (course.decay_steps != 0 && course.decay_steps <= course.warmup_steps) {
    options.refuse("decay_steps", "must be over `warmup_steps`, or 0");
  }
  refuse_missing(options, course);
  if (!std::ranges::is_sorted(course.milestones)) options.refuse("milestones", "must be in ascending order");
  if (course.kind == "one_cycle" && course.shape == "sqrt") {
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

Course read_course(Options& options) {
  using vernier::above;
  using vernier::at_least;
  Course course;
  course.kind = options.choose("kind", "cosine",
                               {"constant", "linear", "cosine", "polynomial", "exponential", "step", "multi_step",
                                "inverse_sqrt", "warmup_stable_decay", "cosine_restarts", "one_cycle", "plateau"},
                               "course after the warm-up");
  const auto count = [&](const char* key, const char* meaning) { return options.get(key, 0, meaning, at_least(0)); };
  const auto part = [&](const char* key, double fallback, const char* meaning) {
    return options.get(key, fallback, meaning, vernier::between(0, 1));
  };
  course.warmup_steps = count("warmup_steps", "applied updates until the full learning rate");
  course.decay_steps = count("decay_steps", "applied updates until final_factor, warm-up included; 0: all planned");
  course.final_factor = part("final_factor", 0.0, "share of the learning rate at the end");
  course.start_factor = part("start_factor", 1.0, "linear: share of the learning rate at the start");
  course.power = options.get("power", 1.0, "polynomial: exponent", above(0));
  course.gamma = options.get("gamma", 0.1, "exponential, step, multi_step: what a step multiplies by", above(0));
  course.every = count("every", "step: applied updates between two steps");
  course.milestones = options.get("milestones", std::vector<std::int64_t>{},
                                  "multi_step: applied updates before each step, warm-up included", at_least(1));
  course.timescale = count("timescale", "inverse_sqrt: the rate is halved after three of these; 0: as warmup_steps");
  course.cooldown_steps = count("cooldown_steps", "warmup_stable_decay: applied updates of the decay; 0: a tenth");
  course.shape = options.choose("shape", "cosine", {"linear", "cosine", "sqrt"},
                                "warmup_stable_decay, one_cycle: how the rate falls and rises");
  course.period = count("period", "cosine_restarts: applied updates of the first period");
  course.multiplier =
      options.get("multiplier", 1, "cosine_restarts: each period is so many times as long", at_least(1));
  course.initial_factor = part("initial_factor", 0.04, "one_cycle: share of the learning rate at the start");
  course.rise = part("rise", 0.3, "one_cycle: share of the updates in which the rate rises");
  return course;
}

double factor_of(const Course& course, std::int64_t done, std::int64_t length) {
  const auto warmup = static_cast<double>(course.warmup_steps), updates = static_cast<double>(done);
  if (updates < warmup) return (updates + 1) / (warmup + 1);
  const auto end = static_cast<double>(course.decay_steps != 0 ? course.decay_steps : length);
  return kind_named(course.kind).factor(course, updates - warmup, std::max(end - warmup, 1.0));
}
