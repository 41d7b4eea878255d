// Folders, for code that must not end the process. std::filesystem's directory_iterator and remove_all do that if they
// find no memory: libstdc++ allocates in a function that is noexcept.
#pragma once

#include <vernier/abi.h>

#include <string>
#include <system_error>
#include <vector>

namespace vernier {

// Returns the names in a folder, without "." and "..", in any order. After a failure `trouble` has the reason, and some
// names may be missing.
VERNIER_API std::vector<std::string> names_in(const std::string& folder, std::error_code& trouble);

// Removes a file, or a folder with everything in it. Does not follow links. A missing path is not an error.
VERNIER_API void remove_all(const std::string& path, std::error_code& trouble);

}  // namespace vernier
