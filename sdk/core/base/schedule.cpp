#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

namespace vernier {

namespace {

namespace courses {

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

void require(const Course& course, std::int64_t number, const char* name) {
  if (number > 0) return;
  refuse(c10::str("a course of the kind \"", course.kind, "\" needs `", name, "`, the applied updates of each part"));
}

double step(const Course& course, double t, double) {
  require(course, course.every, "every");
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
  require(course, course.period, "period");
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

}  // namespace courses

}  // namespace

double learning_rate_factor(const Course& course, std::int64_t done, std::int64_t length) {
  const auto* kind = std::ranges::find(courses::kinds, course.kind,
                                       [](const courses::Kind& each) { return std::string_view(each.name); });
  if (kind == std::end(courses::kinds)) refuse("there is no course of the kind \"" + course.kind + "\"");
  const auto warmup = static_cast<double>(course.warmup_steps), updates = static_cast<double>(done);
  if (updates < warmup) return (updates + 1) / (warmup + 1);
  const auto end = static_cast<double>(course.decay_steps != 0 ? course.decay_steps : length);
  return kind->factor(course, updates - warmup, std::max(end - warmup, 1.0));
}

}  // namespace vernier
