// The speed of a configuration, as a comparison beside its run has measured it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace vernier {

// A run that begins: its output folder, and what its summary.json will say of the rest.
struct SpeedAsked {
  std::filesystem::path output;
  nlohmann::ordered_json configuration;
  std::string device;
  int threads = 0;
};

// Returns "1.9x the speed of float32, as measured in runs/comparison", if a comparison in a folder beside the run's has
// measured both with these options on this device; else "".
std::string measured_speed(const SpeedAsked& asked);

}  // namespace vernier
