// LibTorch's random numbers (ATen/core/MT19937RNGEngine.h: Matsumoto and Nishimura's MT19937), many at a time.
#pragma once

#include <cstdint>

namespace vernier {

// The state of the generator, as at::mt19937_data_pod has it.
struct Twister {
  static constexpr std::int64_t words = 624;
  std::uint32_t* state;  // [words]
  std::int64_t next, left;
};

// Bits: of 1, 2 or 4 bytes.
template <class Bits>
struct RandomKernels {
  // Each of `to` becomes `one` with the probability threshold / 2^53, else 0. Takes two numbers for each.
  void (*draw_bernoulli)(Twister& twister, std::int64_t threshold, Bits one, Bits* to, std::int64_t count);
};

}  // namespace vernier
