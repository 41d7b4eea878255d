// The folder of a run, and how a run goes on from there, for the program and for vernier::Trainer.
#pragma once

#include <vernier/error.h>

#include <functional>
#include <string>

#include "output.h"
#include "run/prepared.h"

namespace vernier {

// Opens the folder of a prepared run, and sets run.output. Where prepared.resumes, the run continues from its newest
// checkpoint there, or from the checkpoint or run at `from`. log_to: called with the path of log.txt once the folder is
// there. Throws Error.
OutputFolder open_run(Prepared& prepared, const std::string& from, bool allow_inexact,
                      const std::function<void(const std::string& path)>& log_to);

// The snapshot at `from`, which may be the folder of a run: its newest one then. If that is empty: of run.output.
std::optional<State> read_snapshot(Checkpoint& checkpoint, TrainerRun& run, const std::string& from);

// Call it in a catch (...) block. Rethrows an exception from reading the run or checkpoint at `path`, with that path.
[[noreturn]] void rethrow_of_run(const std::string& path, Error::Kind otherwise);

// Continues where the checkpoint at `from` was written; if that is empty, from the newest in run.output.
void resume(Prepared& prepared, const std::string& from, bool allow_inexact);

// After open_run(): whether the run was resumed, is complete, and has its summary.json.
bool has_all_it_needs(const Prepared& prepared);

// Writes config.toml, of a run that goes on. Warns of tables that are not read any more, since their role was swapped.
void write_config(const Prepared& prepared);

// Writes summary.json of a run whose training went well.
void summarize(const Prepared& prepared, const Outcome& outcome);
// Writes it where an error of this kind ended the run. What fails then is logged. A run that was refused before it
// trained anything gets none: what stands there is still true.
void summarize_failure(const Prepared& prepared, const Outcome& outcome, Error::Kind kind);

// After a failure: removes the folder of a new run that has trained and saved nothing. Returns whether it did.
bool remove_untrained(const Prepared& prepared, const OutputFolder& folder);

// Logs that a run has diverged, or that all its updates were skipped.
void warn_of_divergence(const Run& run, const Outcome& outcome);

}  // namespace vernier
