// The TOML of a run that trains on data at once.
#pragma once

#include <string>

#include "findings.h"

namespace vernier {

std::string run_file(const Findings& found);

}  // namespace vernier
