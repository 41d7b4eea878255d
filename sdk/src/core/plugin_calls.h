// What the host watches while it calls a plugin. Main thread only.
#pragma once

#include <vernier/run.h>

#include <cstddef>

namespace vernier {

class Plugin;

// The plugin whose listener the bus calls now; null outside of listeners.
VERNIER_API const Plugin* listening_now();

// After a call of a plugin: throws Error if run.parameters, of which there were `count`, are more or fewer now.
VERNIER_API void refuse_other_parameters(const Run& run, std::size_t count);

}  // namespace vernier
