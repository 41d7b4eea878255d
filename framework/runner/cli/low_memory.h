// `--low-memory`: sets the options that save memory, unless the configuration sets them.
#pragma once

#include <vernier/options.h>

#include "wiring/host.h"

namespace vernier {

// Returns the table with these options, for plugins that have them. Logs each one with its cost.
Table with_low_memory(Table config, const Host& host);

}  // namespace vernier
