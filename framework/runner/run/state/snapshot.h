// All that a run depends on, as one State: model, plugins, counters, random generators.
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <string>
#include <vector>

#include "files/weights.h"

namespace vernier {

// Shares the live tensors; whoever keeps it longer than the moment copies. configuration: as resolved, a JSON object;
// "" if there is none to keep. A plugin whose state cannot be saved is refused, or left out of the snapshot: it is
// then not among the plugins of the run that a resumed one is compared with.
enum class Unsavable { refused, left_out };
State take_snapshot(const TrainerRun& run, std::vector<Plugin*> plugins, const std::string& configuration = "",
                    Unsavable unsavable = Unsavable::refused);

// Puts a snapshot into a prepared run. All that can be checked is checked before anything is changed, and refused with
// Error::Kind::configuration: another model always; differences that make resuming inexact (plugins, their options and
// versions, the seed, dtypes, device, threads, LibTorch, processor) unless allow_inexact, which logs them.
// Pass the snapshot by std::move to let the model take its memory; otherwise it is copied (move_into).
void restore_snapshot(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins,
                      const std::string& configuration = "", bool allow_inexact = false);
// The same, for callers that have already logged the differences.
void restore_snapshot_quietly(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins);
// Loads the model of a run alone: the weights, and the states of precision, callbacks and an optimizer that keeps an
// average of the weights. Also sets run.step and run.updates. For a run that is used but not trained, since its data
// may differ. Refuses a snapshot of another model.
void restore_weights(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins);
// The differences that make resuming inexact: "threads was 1 and is 2; …"; "" if there are none.
std::string inexact_by(const State& snapshot, const Run& run, const std::vector<Plugin*>& plugins,
                       const std::string& configuration);

// XXH3-128 over names, dtypes, shapes and bytes, in hexadecimal: equal digests, equal tensors.
std::string digest(const Tensors& tensors);
std::string digest(const torch::nn::Module& model);  // digest of its parameters and buffers
std::string digest(const Batch& batch);              // digest of its tensors

}  // namespace vernier
