// The parts of a snapshot that each of several ranks has, and a State as ranks send it.
#pragma once

#include <vernier/abi.h>
#include <vernier/distributed.h>
#include <vernier/run.h>
#include <vernier/state.h>

#include <cstdint>
#include <set>
#include <string>

namespace vernier {

// A snapshot has rank 0's state. Adds to it, on rank 0, what differs on the other ranks, below "rank/<r>/". is_sharded:
// each parameter has a rank that owns it. All ranks must call it at the same moment.
VERNIER_API void add_state_of_others(State& snapshot, Distributed& distributed, bool is_sharded);
// Gives this rank its own state from a snapshot of as many ranks, else that of rank 0. Throws
// Error::Kind::configuration if snapshot and run do not have the model in as many parts (draft::ModelParts).
VERNIER_API void take_own_state(State& snapshot, const Distributed& distributed);
// Returns this rank's part of a sharded checkpoint: all of rank 0's, of others the entries that no lower rank has.
// Where the model is in parts, a part is below "rank/<r>/", rank 0's too, and so is what else differs from rank 0's.
VERNIER_API State shard_of(const State& snapshot, Distributed& distributed);

// While one exists, read_checkpoint() leaves out large tensors that this rank of a run does not need, because another
// rank keeps them. Their bytes are checked, and take no memory. Main thread only.
class VERNIER_API OwnPart {
 public:
  OwnPart(const Run& run, const Distributed& distributed);
  ~OwnPart();
  OwnPart(const OwnPart&) = delete;
  OwnPart& operator=(const OwnPart&) = delete;
  static bool leaves_out(const std::string& name, std::uint64_t bytes);  // name: in a snapshot

 private:
  std::string own_;  // "rank/1/"
  std::set<std::string>
      others_;  // names of parameters that other ranks update; "model/NAME" for weights that they keep
};

// A State in bytes, for Distributed::gather; its tensors are copied to the CPU.
VERNIER_API std::string to_bytes(const State& state);
VERNIER_API State from_bytes(const std::string& bytes);

// Returns the tensor. If another rank keeps its values (distributed/zero3), returns a copy, which fetches them. Throws
// Error if that rank is lost.
VERNIER_API torch::Tensor here(const torch::Tensor& tensor);

}  // namespace vernier
