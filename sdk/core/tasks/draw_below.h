// Unbiased random integers from any generator of 64 bits, and a mixing of bits.
#pragma once

#include <cstdint>

namespace vernier {

// The finalizer of SplitMix64: each bit of the result depends on all bits of z.
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

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
