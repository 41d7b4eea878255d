// The courses of a learning rate: the share of it that is used, as a function of the applied updates. docs/schedules.md
// has their formulas.
#pragma once

#include <vernier/options.h>

#include <cstdint>
#include <string>
#include <vector>

// The options of one course. schedule.cpp says what they mean; a kind uses only its own.
struct Course {
  std::string kind;
  std::int64_t warmup_steps = 0, decay_steps = 0;
  double start_factor = 1, final_factor = 0, initial_factor = 0.04;
  double power = 1, gamma = 0.1, rise = 0.3;
  std::int64_t every = 0, timescale = 0, cooldown_steps = 0, period = 0, multiplier = 1;
  std::vector<std::int64_t> milestones;
  std::string shape;
};

// Reads the options of a course. Once the plugin has read all its options, one of the other two functions checks them.
Course read_course(vernier::Options& options);

// Throws the error for options that contradict the kind, or each other. is_phase: of [[callback.phase]], which cannot
// be a plateau.
void refuse_contradictions(const vernier::Options& options, const Course& course, bool is_phase);

// Throws the error for the first option of a course that is given: beside phases, they belong into those.
void refuse_beside_phases(const vernier::Options& options);

// The share of the learning rate for the next update, when `done` updates of the course were applied. length: of the
// whole course, in applied updates, at least 1. A plateau has its warm-up here, and 1 after it.
double factor_of(const Course& course, std::int64_t done, std::int64_t length);
