// Unbiased random integers from any generator of 64 bits.
#pragma once

#include <cstdint>

namespace vernier {

// Returns a number below `bound`, which is not 0. Lemire, "Fast random integer generation in an interval" (2019):
// unbiased, and nearly always without a division.
template <class Engine>
std::uint64_t draw_below(std::uint64_t bound, Engine& engine) {
  __extension__ using Wide = unsigned __int128;
  Wide product = Wide{engine()} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t rejected = -bound % bound;  // 2^64 mod bound
    while (static_cast<std::uint64_t>(product) < rejected) product = Wide{engine()} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace vernier
