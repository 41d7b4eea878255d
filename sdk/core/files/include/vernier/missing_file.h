// The remedy for a path that a user named and that leads nowhere.
#pragma once

#include <vernier/abi.h>

#include <string>

namespace vernier {

// Returns the end of an error: "; did you mean 'd.csv'?", what to do about a URL or a path of Windows, or from where
// relative paths are read.
VERNIER_API std::string missing_file_hint(const std::string& path);

}  // namespace vernier
