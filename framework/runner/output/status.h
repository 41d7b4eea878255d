// The status of precision in a run: what is in force, on which hardware, and the memory that it takes.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "run/checked_roles.h"

namespace vernier {

// Returns {"name": "CPU with AMX-BF16", "cuda": false, "bf16": true, "fp16": false, "fp8": false}.
nlohmann::ordered_json hardware_status(c10::DeviceType device);

// docs/reference/run-folder.md describes the keys. The host does not wait for the device.
nlohmann::ordered_json status_of(const Run& run, const Roles& roles);
std::string status_line(const Run& run, const Roles& roles);  // the same for people

// Returns a listener that writes status_of() into a file when another precision, scaler or dtype is in force, and at
// the end. It logs each step's at Level::debug if `logs_steps`.
std::unique_ptr<Monitor> status_file(std::string path, const Roles& roles, bool logs_steps);

}  // namespace vernier
