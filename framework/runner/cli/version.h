// `vernier version`: what this program was built of.
#pragma once

#include <string>

namespace vernier {

// One line for people, as `vernier --version` prints it: the version, the plugin ABI, the build.
std::string version_line();

// Prints all of it, one item a line or as JSON; returns the exit status.
int print_version(bool as_json);

}  // namespace vernier
