// The folder that `vernier new` writes: copies of templates with their words replaced.
#pragma once

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace vernier {

// A full disk, or a folder that may not be written.
class CannotWrite : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns the place of this Vernier, the build tree or the prefix of its installation, for CMAKE_PREFIX_PATH. Throws
// std::runtime_error if this program stands alone.
std::filesystem::path find_prefix();

// Writes `folder` from the files of templates/<part>, with the words replaced in their texts and names. A file of a
// later part replaces one of the same name. The folder is complete or absent: it is written under another name beside
// its place, and renamed. Throws std::runtime_error where it is there already, or CannotWrite. Returns the names of the
// files.
std::vector<std::string> write_project(const std::filesystem::path& templates, const std::vector<std::string>& parts,
                                       const std::map<std::string, std::string>& words,
                                       const std::filesystem::path& folder);

}  // namespace vernier
