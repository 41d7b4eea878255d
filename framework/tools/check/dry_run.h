// One step without its update, from which `vernier check` reports on a run.
#pragma once

#include <optional>

#include "advice/precision_advice.h"
#include "run/training_loop.h"

namespace vernier {

// Computes the gradients of the next batch as a step does. The run must be prepared, and cannot train afterwards.
// Errors name plugin and step, as in a step.
DryRun dry_run(TrainingLoop& trainer, Wiring& wiring, TrainerRun& run);

// After that: what a run does for the first time after hours. Validates; has the task save and load its state, and
// draws a batch. Warns if the task would have drawn another one without that. Errors name plugin and function. Returns
// the validation's loss, if there is one.
std::optional<double> rehearse(TrainingLoop& trainer, TrainerRun& run);

// Draws the batches of an epoch, for ten seconds at most, so that data that cannot be read are found now. Returns how
// many were drawn. Call it after rehearse(); it leaves the task anywhere.
std::int64_t read_epoch(TrainingLoop& trainer, TrainerRun& run);

}  // namespace vernier
