// Replaces the plugins of some roles between two steps of a run. Callbacks, recovery and resuming all use this.
#pragma once

#include <vernier/host.h>

#include <string>

#include "wiring.h"

namespace vernier {

BuiltModel built_model(const torch::nn::Module& model);

// Makes, attaches and prepares the plugins that the tables name. Then hands over the state of the old ones and destroys
// them. A new precision gets the model as the task built it, with the values of the master weights. The optimizer is
// also made anew if its tensors change, and the scaler if the model's dtype changes. If anything throws, wiring and run
// are as before, and the error has the table's place.
void swap(Wiring& wiring, TrainerRun& run, const Table& roles);

// Throws Error if a table is wrong by itself.
void try_swap(const Wiring& wiring, const Table& roles);

// Returns the swaps of a run as TOML, for a snapshot: the tables of the swapped roles, and the history; "" for none.
std::string text_of_swaps(const Wiring& wiring);
// Repeats the swaps in the text_of_swaps() of an earlier wiring.
void swap_again(Wiring& wiring, TrainerRun& run, const std::string& swaps);

}  // namespace vernier
