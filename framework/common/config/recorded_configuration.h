// The configuration that a run's folder keeps.
#pragma once

#include <filesystem>
#include <string>

namespace vernier::cli {

// Returns the config.toml of the run at a path, or of the run whose checkpoint is there. Throws Error if there is none.
std::string configuration_at(const std::filesystem::path& path);

}  // namespace vernier::cli
