// Patterns of the names of layers and parameters, such as "h.*.mlp.*". Needs the standard library and POSIX only.
#pragma once

#include <fnmatch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace vernier {

// Returns true if the pattern fits the whole name. As in a shell, * is any text, ? one character and [ab] one of these;
// a dot is a character like any other.
inline bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

inline bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(pattern, name); });
}

}  // namespace vernier
