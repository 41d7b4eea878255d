// How deep a TOML text nests, which toml++ 3.3 does not limit for dotted keys: a.b.c.… of 40,000 parts.
#pragma once

#include <filesystem>
#include <string>

namespace vernier {

constexpr int deepest_toml = 64;  // tables and lists in each other

// Returns the line, from 1, in which a text nests deeper than that; 0 if none does. Texts and comments do not count. In
// a text that is not TOML, it may miss what follows the first error.
int line_too_deep(const std::string& text);

// Returns the text of a file, which may be a stranger's. Throws Refused where it nests too deep.
std::string shallow_toml(const std::filesystem::path& path);

}  // namespace vernier
