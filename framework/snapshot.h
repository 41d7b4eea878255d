// All that a run depends on, as one State: model, plugins, counters, random generators.
#pragma once

#include <vernier/roles.h>

#include <string>
#include <vector>

namespace vernier {

// Shares the live tensors; whoever keeps it longer than the moment copies.
State take_snapshot(const Run& run, const std::vector<Plugin*>& plugins);

// Puts a snapshot into a prepared run. Checks names, shapes and dtypes of the model and the set of plugins first and
// throws Error::Kind::configuration before anything is changed.
void restore_snapshot(const State& snapshot, Run& run, const std::vector<Plugin*>& plugins);

// XXH3-128 over names, dtypes, shapes and bytes of the model's parameters and buffers, in hexadecimal: equal digests,
// equal models.
std::string digest(const torch::nn::Module& model);

}  // namespace vernier
