// The schedules of vernier/schedule.h, as a loop of one's own calls them. schedule_kinds_test.cpp compares all of them
// with PyTorch.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/schedule.h>

#include <cmath>

#include "thrown.h"

namespace schedule_test {

using vernier::learning_rate_factor;
using vernier::LearningRateSchedule;

TEST_CASE("schedule: a warm-up, then the schedule") {
  const LearningRateSchedule cosine{.kind = "cosine", .warmup_steps = 4, .final_factor = 0.1};
  const LearningRateSchedule linear{.kind = "linear", .start_factor = 0.5, .final_factor = 0};
  const LearningRateSchedule step{.kind = "step", .gamma = 0.5, .every = 10};
  const struct {
    LearningRateSchedule schedule;
    std::int64_t done;
    double factor;
  } cases[] = {{cosine, 0, 0.2},
               {cosine, 4, 1},
               {cosine, 104, 0.1},
               {cosine, 1000, 0.1},
               {linear, 0, 0.5},
               {linear, 52, 0.25},
               {linear, 104, 0},
               {step, 9, 1},
               {step, 10, 0.5},
               {step, 35, 0.125},
               {LearningRateSchedule{.kind = "one_cycle", .warmup_steps = 50}, 0, 0.04},
               {LearningRateSchedule{.kind = "constant"}, 7, 1}};
  for (const auto& each : cases) {
    CAPTURE(each.schedule.kind);
    CAPTURE(each.done);
    CHECK(std::abs(learning_rate_factor(each.schedule, each.done, 104) - each.factor) < 1e-12);
  }
}

TEST_CASE("schedule: what a schedule lacks is named") {
  const std::pair<LearningRateSchedule, const char*> cases[] = {
      {{.kind = "cosin"}, "there is no schedule of the kind \"cosin\""},
      {{.kind = "step"}, "a schedule of the kind \"step\" needs `every`"},
      {{.kind = "cosine_restarts"}, "a schedule of the kind \"cosine_restarts\" needs `period`"},
      {{.kind = "cosine_restarts", .period = 3, .multiplier = 0}, "has the multiplier 0, and it must be at least 1"},
      {{.shape = "lineer"}, "a schedule cannot have the shape \"lineer\"; it takes linear | cosine | sqrt"}};
  for (const auto& [schedule, text] : cases) {
    CHECK(says(thrown_by([&, &schedule = schedule] { learning_rate_factor(schedule, 1, 10); }).text, text));
  }
}

}  // namespace schedule_test
