// The place of a process among those that train together, as its launcher says in the environment.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <string>

namespace vernier {

struct LaunchPlace {
  std::int64_t rank = 0, ranks = 1, local_rank = 0;
  std::string address = {};         // address of the machine with rank 0
  std::int64_t port = 0;            // port of the store there; 0: the launcher names none
  std::string attempt = "0";        // counts restarts: the store of torchrun outlives them
  bool launcher_has_store = false;  // torchrun serves the store itself
  std::string launcher = {};        // the launcher, as in vernier/launchers.h; "" for one process
};

// Reads the variables of vernier/launchers.h: torchrun's (and those of `vernier launch`) first, then those of the first
// launcher of several processes. Throws Error if one of them is not a number, if rank and number of ranks do not fit,
// or if one of the two is missing.
VERNIER_API LaunchPlace place_in_environment();

// Returns the place of this process on its machine, or 0.
VERNIER_API std::int64_t local_rank_in_environment();

// Why a process must not train alone: its launcher has started it as one of several. "" where it has not.
VERNIER_API std::string several_of_launcher();

// The first machine of a list as Slurm writes it: "gpu003" of "gpu[003-005,9],cpu1".
VERNIER_API std::string first_node(const std::string& list);

}  // namespace vernier
