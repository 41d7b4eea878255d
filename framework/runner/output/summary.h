// summary.json, the result of a run for people and programs.
#pragma once

#include <string>

#include "run/training_loop.h"

namespace vernier {

// How a run ended: "done", "finished" by a plugin, "stopped" by the program around it, "signal 15", "time_limit",
// "diverged" or "error".
std::string ended_by(const Outcome& outcome);

// Writes the file at the end of a run, however it ended. docs/reference/run-folder.md describes the format.
void write_summary(const std::string& path, const Run& run, const RunOptions& options, const Options& run_table,
                   const Wiring& wiring, const Outcome& outcome);

// Returns whether a file is the summary of the finished run in its current state. A run that was killed after its last
// checkpoint has none, or that of a shorter run.
bool is_summary_of(const std::string& path, const Run& run);

}  // namespace vernier
