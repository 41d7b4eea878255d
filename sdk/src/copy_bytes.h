// A copy that goes past the caches: half of the time, and what was in them stays. For what nobody reads soon.
#pragma once

#include <cstddef>

namespace vernier {

void copy_bytes_past_caches(char* to, const char* from, std::size_t count);

}  // namespace vernier
