// `--low_memory`: what saves memory in each role, switched on where the configuration does not say else.
#pragma once

#include <vernier/options.h>

#include "host.h"

namespace vernier {

// The table with the levers set that the plugins in it have; each is told in a log line, with what it costs.
Table with_low_memory(Table config, const Host& host);

}  // namespace vernier
