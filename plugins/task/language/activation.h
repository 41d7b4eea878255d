// The activation functions that a config.json names.
#pragma once

#include <string>

#include "config.h"
#include "network.h"

namespace language {

// The function that a key such as activation_function names. Throws Error for a name that is not known.
Activation activation_of(const Config& config, const char* key, const std::string& fallback);

}  // namespace language
