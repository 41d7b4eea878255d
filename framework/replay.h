// `vernier replay`: runs the step of a capsule again, every operation watched.
#pragma once

#include <vernier/capsule.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host.h"

namespace vernier {

struct Prepared;

// The step of a capsule, computed again.
struct Replayed {
  std::string precision, inexact;  // its id; what is not as it was when the step was kept
  Fingerprint bits;
  std::optional<Origin> origin;
  std::vector<LayerOutput> outputs;                               // of the layers, in the order of forward
  std::vector<std::pair<std::string, torch::Tensor>> gradients;  // float32 on the CPU, in the order of the parameters
  double epsilon = 0;                                             // of the coarsest dtype that was met
  std::int64_t operations = 0;
};

// The run, from the capsule's configuration or from another of the same model, is of no use for training after it.
Replayed replay(Prepared& prepared, const Capsule& capsule, bool keep_outputs);

// One row of two runs side by side.
struct Compared {
  std::string what;  // "h.0.mlp.c_fc", or a parameter's name for its gradient
  bool is_gradient = false;
  TensorRange first, second;
  double distance = 0;  // |first - second| / |second|, Euclidean, of what is finite; inf where only one of them is
  double limit = 0;     // what rounding explains
  bool is_beyond() const { return !(distance <= limit); }
};
std::vector<Compared> compare(const Replayed& first, const Replayed& second);

// The configuration of a capsule's run, to be wired without monitors and checkpoints.
Table configuration_of(const Capsule& capsule, const std::string& path);

// The verb: 0 where the step gave the same bits again, 4 where it did not. sets: what is changed for a second run, that is
// shown beside the first; none: no second run.
int replay_capsule(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                   const std::atomic<int>& stop);

}  // namespace vernier
