// Rewords the error messages of other libraries for users of Vernier.
#pragma once

#include <vernier/abi.h>

#include <string>

namespace vernier {

// Returns what a text of the standard library, LibTorch, nlohmann-json, toml++, libjpeg or libpng means, as the end of
// a sentence that begins with file and place. `otherwise` is for texts that are not known; "": those stay as they are.
VERNIER_API std::string reworded_error(const std::string& foreign, const std::string& otherwise = "");

}  // namespace vernier
