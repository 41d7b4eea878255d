// `vernier replay`: runs the step of a capsule again, and traces every operation.
#pragma once

#include <vernier/capsule.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wiring/host.h"

namespace vernier {

struct Prepared;

// The result of a replay.
struct Replayed {
  std::string precision, inexact;  // the plugin's id; what differs from the run that kept the step, "" if nothing does
  Fingerprint bits;
  std::optional<NonFiniteOrigin> origin;
  std::vector<LayerOutput> outputs;                              // outputs of the layers, in the order of forward
  std::vector<std::pair<std::string, torch::Tensor>> gradients;  // float32 on the CPU, in the order of the parameters
  double epsilon = 0;                                            // machine epsilon of the coarsest dtype in the step
  std::int64_t operations = 0;
};

// Replays a capsule in a run that was prepared from the capsule's configuration, or from another one of the same model.
// The run cannot train afterwards.
Replayed replay(Prepared& prepared, const Capsule& capsule, bool keep_outputs);

// One row of a comparison of two replays.
struct Compared {
  std::string what;  // the layer "h.0.mlp.c_fc", or a parameter's name for its gradient
  bool is_gradient = false;
  TensorRange first, second;
  double distance = 0;  // |first - second| / |second| over finite values, Euclidean; inf if only one is finite
  double limit = 0;     // the distance that rounding explains
  bool is_beyond() const { return !(distance <= limit); }
};
std::vector<Compared> compare(const Replayed& first, const Replayed& second);

// |first - second| / |second|, Euclidean, of what is finite in both. A nan or an inf that both have in the same place
// is not a difference; one that only one has is beyond any limit: inf.
double distance_of(const torch::Tensor& first, const torch::Tensor& second);

// Returns the configuration of a capsule's run, without monitors and checkpoints.
Table configuration_of(const Capsule& capsule, const std::string& path);

// Returns the configuration with the tables of the plugins that were swapped in before the state was taken.
Table with_swaps(Table config, const State& state, const std::string& path);

// Prepares a run that is replayed. threads: those of the run; 0: of its table. path: of the run or capsule, for errors.
std::unique_ptr<Prepared> build_again(Table config, const std::string& path, bool resumes, std::int64_t threads,
                                      const Host& host, const std::atomic<int>& stop);

// Returns where the first bad value of the step came from; nothing if loss and gradients are finite.
std::optional<NonFiniteOrigin> origin_of(const NonFiniteTracer& tracer, const Run& run);

// Replays the step in a run of the configuration with `sets`, and prints it beside the first replay, layer by layer.
void replay_beside(const Replayed& first, const Capsule& capsule, const Table& config, const std::string& path,
                   const std::vector<std::string>& sets, const Host& host, const std::atomic<int>& stop);

// Runs `vernier replay CAPSULE`. Returns 0 if the step gave the same bits again, else 4. sets: changes for a second
// replay, which is printed beside the first; empty: no second replay.
int replay_capsule(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                   const std::atomic<int>& stop);

// The verb `data`, which this program runs under the name vernier-data.
int call_data(int argc, char** argv);

}  // namespace vernier
