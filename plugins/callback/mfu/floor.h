// The floor of this machine: how fast it multiplies matrices and moves memory, measured once and kept in a file.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace vernier {

struct Peak {
  double flops = 0;  // operations a second; a multiplication and an addition are two
  std::int64_t side = 0;
};

// Multiplies growing square matrices, each for so many seconds and at least three times, until one product takes 10 ms.
// Returns the fastest size. Draws no random numbers, because a generator's state is the run's.
Peak measured_peak(torch::Device device, torch::ScalarType dtype, double seconds);

struct Floor {
  struct Rates {
    double read = 0, changed = 0;  // bytes a second, read once; and read and written in place, both counted
  };
  std::map<torch::ScalarType, double> flops;  // operations a second
  std::map<double, Rates> memory;             // by its bytes: what fits into a cache is faster

  // Returns the seconds that so many operations take in the dtype, and a change in place of so many bytes. Nothing for
  // a dtype that was not measured.
  std::optional<double> seconds(double operations, torch::ScalarType dtype, double bytes) const;
  std::string table() const;  // for people
};

// Returns the path of the rates for this processor and `threads`, in $XDG_CACHE_HOME/vernier or ~/.cache/vernier.
std::filesystem::path floor_file(int threads);
// Reads the file. Returns nothing if there is none. Throws Error if it is damaged.
std::optional<Floor> kept_floor(int threads);
// Measures each rate for so many seconds, with the threads that LibTorch has now, and writes the file.
Floor measure_floor(double seconds);

}  // namespace vernier
