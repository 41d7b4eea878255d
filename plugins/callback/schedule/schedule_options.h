// The options of a learning-rate schedule; vernier/schedule.h has the functions.
#pragma once

#include <vernier/options.h>
#include <vernier/schedule.h>

// Reads the options of a schedule. Once the plugin has read all its options, one of the other two functions checks
// them.
vernier::LearningRateSchedule read_schedule(vernier::Options& options);

// Throws the error for options that contradict the kind, or each other. is_phase: of [[callback.phase]], which cannot
// be a plateau.
void refuse_contradictions(const vernier::Options& options, const vernier::LearningRateSchedule& schedule,
                           bool is_phase);

// Throws the error for the first option of a schedule that is given: beside phases, they belong into those.
void refuse_beside_phases(const vernier::Options& options);
