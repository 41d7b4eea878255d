// The options of a course, of which vernier/schedule.h has the functions.
#pragma once

#include <vernier/options.h>
#include <vernier/schedule.h>

// Reads the options of a course. Once the plugin has read all its options, one of the other two functions checks them.
vernier::Course read_course(vernier::Options& options);

// Throws the error for options that contradict the kind, or each other. is_phase: of [[callback.phase]], which cannot
// be a plateau.
void refuse_contradictions(const vernier::Options& options, const vernier::Course& course, bool is_phase);

// Throws the error for the first option of a course that is given: beside phases, they belong into those.
void refuse_beside_phases(const vernier::Options& options);
