// Counts tensor memory that does not come from LibTorch's allocator. vernier/memory.h reports it with the rest.
#pragma once

#include <vernier/abi.h>

#include <cstdint>

namespace vernier {

VERNIER_API void count_memory_of_others(std::int64_t bytes);  // negative when the memory is freed; any thread

}  // namespace vernier
