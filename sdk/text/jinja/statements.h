// Reads a template as a function that writes its text.
#pragma once

#include <string>

#include "run.h"

namespace vernier::jinja {

using Statement = Part<void>;

// Throws Error, with the line, if the text is not Jinja, and names statements that are not supported.
Statement program_of(const std::string& source);

}  // namespace vernier::jinja
