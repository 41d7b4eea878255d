// What a run leaves for people and programs to read: summary.json.
#pragma once

#include <string>

#include "trainer.h"

namespace vernier {

// Written at the end of a run, also of one that a signal or an error ended. The format is described in docs/config.md.
void write_summary(const std::string& path, const Run& run, const RunOptions& options, const Options& run_table,
                   const Wiring& wiring, const Outcome& outcome);

// Whether a file is the summary of the whole run as it stands: one that was killed after its last checkpoint has none, or
// that of a shorter run.
bool is_summary_of(const std::string& path, const Run& run);

// One step, before its end is told, into run.amp, but for its overflow: scale and underflow from metrics. Where the host
// learns late it waits for the first scale alone; later ones come from the notices of the step, when all are there.
void count_step(Run& run);
void count_scale_changes(Run& run);

// Every option of every plugin as it was read, as a JSON object: what a checkpoint keeps.
std::string resolved_configuration(const Options& run_table, const Wiring& wiring);

}  // namespace vernier
