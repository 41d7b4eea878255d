// Trains the candidates of a comparison, one run at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comparison.h"
#include "tools/common/trials.h"

namespace vernier {

struct Plan {
  std::vector<Candidate> candidates;
  Common common;
  std::filesystem::path folder;  // has <candidate>/seed-<n>
  int seeds = 0;
  bool is_quiet = false;
};

// Merges the configuration of each candidate and keeps it as <candidate>/candidate.toml, by which a later call knows
// the candidate again. Throws Refused before anything is trained: where files cannot be merged, where tasks differ, and
// where the folder has runs of another configuration.
void check_configurations(const Plan& plan, Children& children);

// Trains seed 1 of every candidate, then seed 2 in reversed order, and so on: what slows a machine down for a while
// hits all candidates alike. Runs that are complete stay; others are trained from their start. Ends early if a signal
// came.
std::vector<Row> train_rounds(const Plan& plan, Children& children);

}  // namespace vernier
