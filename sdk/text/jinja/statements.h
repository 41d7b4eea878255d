// Reads a template as a function that writes its text.
#pragma once

#include <string>

#include "run.h"

namespace vernier::jinja {

using Statement = Part<void>;

// Throws Error, with the line, for what is no Jinja, and for statements that are not supported, by their names.
Statement program_of(const std::string& source);

}  // namespace vernier::jinja
