// Calls of vernier for a candidate, and what their ends say.
#pragma once

#include <string>
#include <vector>

#include "candidates.h"
#include "tools/common/child.h"

namespace vernier {

// Options for all candidates.
struct Common {
  std::vector<std::string> sets;          // "KEY=VALUE", before those of a candidate
  std::vector<std::string> plugin_paths;  // of --plugin-path
};

// The words of `vernier VERB` for a candidate: its files, --set and --plugin-path.
std::vector<std::string> command_of(const char* verb, const Common& common, const Candidate& candidate);

// Returns the last line of vernier on standard error, without the name of the program.
std::string reason_of(const Ended& ended);

bool is_refusal(const Ended& ended);  // the configuration or a plugin was refused
bool is_whole(const Ended& ended);    // the training ended by itself: done, diverged, or out of time

// The candidate's configuration as `vernier config` prints it, in TOML. Empty where a signal came. Throws Refused where
// the files cannot be merged.
std::string merged_configuration(const Common& common, const Candidate& candidate, Children& children);

}  // namespace vernier
