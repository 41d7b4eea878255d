// What a run leaves for people and programs to read: summary.json.
#pragma once

#include <string>

#include "trainer.h"

namespace vernier {

// Written at the end of a run, also of one that a signal ended. The format is described in docs/config.md.
void write_summary(const std::string& path, const Run& run, const RunOptions& options, const Options& run_table,
                   const Wiring& wiring, const Outcome& outcome);

// Whether a file is the summary of the whole run as it stands: one that was killed after its last checkpoint has none, or
// that of a shorter run.
bool is_summary_of(const std::string& path, const Run& run);

// One step, at its end, into the counts: overflows from notices, the scale and underflow from metrics. On a GPU it waits
// for the first scale alone; later ones come from the notices.
void count_step(AmpStats& stats, const Run& run, double seconds);

// Every option of every plugin as it was read, as a JSON object: what a checkpoint keeps.
std::string resolved_configuration(const Options& run_table, const Wiring& wiring);

}  // namespace vernier
