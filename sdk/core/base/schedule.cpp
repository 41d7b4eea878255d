#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

namespace vernier {

namespace {

namespace schedules {

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

// In what follows, t counts the applied updates since the warm-up, and length is that of the schedule without it.
using Function = double (*)(const LearningRateSchedule& schedule, double t, double length);

double constant(const LearningRateSchedule&, double, double) {
  return 1;
}

double linear(const LearningRateSchedule& schedule, double t, double length) {
  return between(schedule.start_factor, schedule.final_factor, 1 - share(t, length));
}

double cosine(const LearningRateSchedule& schedule, double t, double length) {
  return between(1, schedule.final_factor, falling("cosine", share(t, length)));
}

double polynomial(const LearningRateSchedule& schedule, double t, double length) {
  return between(1, schedule.final_factor, std::pow(1 - share(t, length), schedule.power));
}

double exponential(const LearningRateSchedule& schedule, double t, double) {
  return std::pow(schedule.gamma, t);
}

void require(const LearningRateSchedule& schedule, std::int64_t number, const char* name) {
  if (number > 0) return;
  refuse(
      c10::str("a schedule of the kind \"", schedule.kind, "\" needs `", name, "`, the applied updates of each part"));
}

double step(const LearningRateSchedule& schedule, double t, double) {
  require(schedule, schedule.every, "every");
  return std::pow(schedule.gamma, std::floor(t / static_cast<double>(schedule.every)));
}

double multi_step(const LearningRateSchedule& schedule, double t, double) {
  const double done = t + static_cast<double>(schedule.warmup_steps);
  const auto is_passed = [&](std::int64_t milestone) { return static_cast<double>(milestone) <= done; };
  return std::pow(schedule.gamma, std::ranges::count_if(schedule.milestones, is_passed));
}

double inverse_sqrt(const LearningRateSchedule& schedule, double t, double) {
  constexpr double without_warmup = 10'000;
  const auto given = static_cast<double>(schedule.timescale != 0 ? schedule.timescale : schedule.warmup_steps);
  const double timescale = given > 0 ? given : without_warmup;
  return std::sqrt(timescale / (timescale + t));
}

double warmup_stable_decay(const LearningRateSchedule& schedule, double t, double length) {
  const auto given = static_cast<double>(schedule.cooldown_steps);
  const double cooldown = given > 0 ? std::min(given, length) : std::ceil(length / 10);
  const double stable = length - cooldown;
  return t < stable ? 1 : between(1, schedule.final_factor, falling(schedule.shape, share(t - stable, cooldown)));
}

double cosine_restarts(const LearningRateSchedule& schedule, double t, double) {
  require(schedule, schedule.period, "period");
  if (schedule.multiplier < 1) {
    refuse(c10::str("a schedule of the kind \"cosine_restarts\" has the multiplier ", schedule.multiplier,
                    ", and it must be at least 1"));
  }
  auto period = static_cast<double>(schedule.period);
  if (schedule.multiplier == 1) {
    t = std::fmod(t, period);
  } else {
    for (; t >= period; period *= static_cast<double>(schedule.multiplier)) t -= period;
  }
  return between(1, schedule.final_factor, falling("cosine", t / period));
}

// The highest and the last point are one update earlier than the shares of the length say, as in PyTorch.
double one_cycle(const LearningRateSchedule& schedule, double t, double length) {
  const double top = schedule.rise * length - 1, end = length - 1;
  if (t <= top) {
    return between(schedule.initial_factor, 1, falling(schedule.shape, top > 0 ? t / top : 1));
  }
  const double progress = end > top ? std::clamp((t - top) / (end - top), 0.0, 1.0) : 1;
  return between(1, schedule.final_factor, falling(schedule.shape, progress));
}

struct Kind {
  const char* name;
  Function factor;
};
constexpr Kind kinds[] = {{"constant", constant},
                          {"linear", linear},
                          {"cosine", cosine},
                          {"polynomial", polynomial},
                          {"exponential", exponential},
                          {"step", step},
                          {"multi_step", multi_step},
                          {"inverse_sqrt", inverse_sqrt},
                          {"warmup_stable_decay", warmup_stable_decay},
                          {"cosine_restarts", cosine_restarts},
                          {"one_cycle", one_cycle},
                          {"plateau", constant}};

}  // namespace schedules

}  // namespace

double learning_rate_factor(const LearningRateSchedule& schedule, std::int64_t done, std::int64_t length) {
  const auto* kind = std::ranges::find(schedules::kinds, schedule.kind,
                                       [](const schedules::Kind& each) { return std::string_view(each.name); });
  if (kind == std::end(schedules::kinds)) refuse("there is no schedule of the kind \"" + schedule.kind + "\"");
  if (schedule.shape != "linear" && schedule.shape != "cosine" && schedule.shape != "sqrt") {
    refuse("a schedule cannot have the shape \"" + schedule.shape + "\"; it takes linear | cosine | sqrt");
  }
  const bool has_warmup = std::string_view(kind->name) != "one_cycle";
  const auto warmup = has_warmup ? static_cast<double>(schedule.warmup_steps) : 0.0,
             updates = static_cast<double>(done);
  if (updates < warmup) return (updates + 1) / (warmup + 1);
  const auto end = static_cast<double>(schedule.decay_steps != 0 ? schedule.decay_steps : length);
  return kind->factor(schedule, updates - warmup, std::max(end - warmup, 1.0));
}

}  // namespace vernier
