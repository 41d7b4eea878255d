// How a snapshot of a run is divided between the three files of a checkpoint.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/state.h>

namespace vernier {

// state.safetensors has this entry if the folder is a capsule (capsule.h) and not a checkpoint of a run.
inline constexpr const char* capsule_report_key = "capsule/report";

// checkpoint/rolling and write_capsule() call this before they write. Entries "model/NAME" become the model's tensor
// NAME. "run/configuration" and "run/versions" become members of the manifest. All other entries become the state.
// Tensors are shared, not copied. The caller sets the manifest's step and run. Any thread.
VERNIER_API StoredCheckpoint split_snapshot(const State& snapshot);

// The reverse, after read_checkpoint().
VERNIER_API State join_snapshot(StoredCheckpoint stored);

}  // namespace vernier
