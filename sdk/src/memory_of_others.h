// Memory of tensors that LibTorch's allocator has not given out, in the count of vernier/memory.h.
#pragma once

#include <vernier/abi.h>

#include <cstdint>

namespace vernier {

VERNIER_API void count_memory_of_others(std::int64_t bytes);  // less than 0 where it is given back; any thread

}  // namespace vernier
