// The configurations that a comparison trains, and calls of vernier for them.
#pragma once

#include <string>
#include <vector>

#include "common/child.h"

namespace vernier {

struct Candidate {
  std::string name;                // the name of its table row and its folder, unique
  std::vector<std::string> files;  // merged left to right
  std::vector<std::string> sets;   // "KEY=VALUE", after those that hold for all
};

struct Wanted {
  std::vector<std::string> files = {};   // each is a candidate, or several with sweeps
  std::vector<std::string> bases = {};   // merged before each of the files
  std::vector<std::string> sweeps = {};  // "precision=fp32,bf16"
  bool precisions = false;               // the candidates of --precision
  std::string formats = {};              // "nvfp4,mxfp8,bf16": the candidates of --formats, behind float32
};

constexpr std::size_t most_candidates = 32;

// The product of files, precisions and sweeps; the first is the baseline. Throws Refused if a sweep cannot be read, or
// if there are more than most_candidates.
std::vector<Candidate> candidates_of(const Wanted& wanted);

// Options for all candidates.
struct Common {
  std::vector<std::string> sets;          // "KEY=VALUE", before those of a candidate
  std::vector<std::string> plugin_paths;  // folders passed to --plugin-path
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
