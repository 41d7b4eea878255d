// The runs that this user made or trusts. Code from the files of any other run is refused: docs/decisions/0025.
#pragma once

#include <filesystem>

namespace vernier {

// Notes that a run is this user's, in ~/.local/state/vernier/runs. A copy of its folder is another run. Called when a
// run begins; where nothing can be written, the run is not known later.
void note_own_run(const std::filesystem::path& folder);
bool is_own_run(const std::filesystem::path& folder);

// After --trust: all runs are taken for the user's own, and noted as such.
void trust_runs();
// Returns the path for a ForeignRun: "" for the user's own run, or one that is trusted. path: a run, or what is in it.
std::string foreign(const std::filesystem::path& path);

}  // namespace vernier
