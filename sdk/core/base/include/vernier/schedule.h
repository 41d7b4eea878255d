// Learning-rate schedules: the rate as a function of the applied updates, with a warm-up. callback/schedule has them
// as options, and docs/guides/schedules.md their formulas and pictures. For loops and plugins of your own:
//
//   const vernier::LearningRateSchedule schedule{.kind = "cosine", .warmup_steps = 100, .final_factor = 0.1};
//   optimizer.set_lr(3e-4 * vernier::learning_rate_factor(schedule, updates, steps));
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

// A kind uses only its own of the numbers; steps are applied updates.
struct LearningRateSchedule {
  // "constant", "linear", "cosine", "polynomial", "exponential", "step", "multi_step", "inverse_sqrt",
  // "warmup_stable_decay", "cosine_restarts", "one_cycle"; or "plateau", which is constant: a metric lowers the rate.
  std::string kind = "cosine";
  std::int64_t warmup_steps = 0;                                     // all kinds but one_cycle
  std::int64_t decay_steps = 0;                                      // until final_factor, warm-up included; 0: all
  double start_factor = 1, final_factor = 0, initial_factor = 0.04;  // linear; where a decay ends; one_cycle
  double power = 1, gamma = 0.1, rise = 0.3;                         // polynomial; the steps; one_cycle
  std::int64_t every = 0;                                            // step: must be given
  std::int64_t timescale = 0;                                        // inverse_sqrt; 0: warmup_steps, or 10000
  std::int64_t cooldown_steps = 0;                                   // warmup_stable_decay; 0: a tenth
  std::int64_t period = 0, multiplier = 1;                           // cosine_restarts: period must be given
  std::vector<std::int64_t> milestones = {};                         // multi_step, in ascending order
  std::string shape = "cosine";                                      // "linear", "cosine" or "sqrt" of a decay
};

// Returns the share of the learning rate for the next update, when `done` updates of the schedule were applied. length:
// of the whole schedule, in applied updates, at least 1. Throws Error for an unknown kind, and for "step" and
// "cosine_restarts" without `every` and `period`.
VERNIER_API double learning_rate_factor(const LearningRateSchedule& schedule, std::int64_t done, std::int64_t length);

}  // namespace vernier
