// Folders in which plugins are searched for, by the program and by programs that use vernier::Trainer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vernier {

// The folders that are searched, in order: the given ones, $VERNIER_PLUGIN_PATH, the folder `plugins` beside each of
// the TOML files, the user's data folder, and the installation or build tree that this code is part of. Throws
// Error::Kind::configuration for a given folder that is not there; given_by: how it was given, "--plugin-path ".
std::vector<std::filesystem::path> plugin_folders(const std::vector<std::string>& given, const std::string& given_by,
                                                  const std::vector<std::string>& files);

// The folder `plugins` beside each TOML file, there or not.
std::vector<std::filesystem::path> plugin_folders_beside(const std::vector<std::string>& files);

// Warns, once for each file, if a plugin of the same role and name is in these folders too, such as one of Vernier's.
void say_what_it_hides(const std::filesystem::path& file, const std::vector<std::filesystem::path>& folders,
                       const std::string& role, const std::string& name);

}  // namespace vernier
