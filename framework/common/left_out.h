// The plugins and verbs of components that this build leaves out (VERNIER_COMPONENTS, sdk/components.tsv).
#pragma once

#include <string>

namespace vernier {

// Returns the error for a plugin, "task/tabular", or a verb, "predict", of a component that this build leaves out; ""
// for any other.
std::string left_out(const std::string& what);

}  // namespace vernier
