// flight_recorder: what it looks at in a run, and what it keeps of it; see flight_recorder.cpp.
#pragma once

#include <vernier/capsule.h>
#include <vernier/sdk.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace recorder {

// "h.0.mlp" of "h.0.mlp.weight".
std::string layer_of(const std::string& parameter);

// The origin of what an update made of a parameter, with no more than that.
vernier::NonFiniteOrigin update_of(const std::string& parameter);

bool is_skipped(const vernier::Run& run);  // a host sync on a GPU

// The factor that the gradients in memory still have. 1 if they are unscaled.
double pending_scale(const vernier::Run& run);

// A sum hides neither inf nor nan, but finite values may overflow in it. If this returns false, look at each tensor. On
// a GPU it costs one host sync for all.
bool have_finite_sums(const std::vector<torch::Tensor>& tensors);
bool is_finite(const torch::Tensor& tensor);

// Returns the index of the first bad parameter, or run.parameters.size(). The forward pass may read another tensor than
// the optimizer updates.
std::size_t first_bad(const vernier::Run& run);
const torch::Tensor& bad_weight(const vernier::Parameter& parameter);
bool is_bad_cast(const vernier::Parameter& parameter);  // the optimizer's is finite, and too large for forward's

// Finite gradients whose squares are not.
std::optional<vernier::NonFiniteOrigin> norm_that_overflows(const vernier::Run& run);

// The state of the moment: live tensors, which may change until it is written. On a GPU there may be no room.
vernier::State copy_of_state(const vernier::Run& run);

// Writes the capsule and returns its path, or "" if the run has no folder. Throws Error.
std::string write(const vernier::Run& run, const vernier::Capsule& capsule);

// "optimizer/adamw" of the run's plugins.
std::string plugin_of(const std::string& role, const vernier::State& snapshot);

// The entries of a plugin's state that belong to a parameter, by its name or its number: "exp_avg", "momentum_buffer".
std::vector<std::pair<std::string, torch::Tensor>> state_of(const vernier::State& plugin, const std::string& parameter,
                                                            std::size_t number);

}  // namespace recorder
