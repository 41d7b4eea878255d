// Compiled with vectorisation (CMakeLists.txt).
#include "bernoulli_kernel.h"

#include <algorithm>

#include "base/kernels.h"
#include "base/targets.h"

namespace vernier {

namespace {

using Word = std::uint32_t;
constexpr std::int64_t words = Twister::words, ahead = 397;

VERNIER_INLINE Word twisted(Word upper, Word lower) {
  return (((upper & 0x80000000U) | (lower & 0x7FFFFFFFU)) >> 1) ^ (-(lower & 1U) & 0x9908B0DFU);
}

VERNIER_AVX2 void renew(Word* state) {
  for (std::int64_t i = 0; i < words - ahead; ++i) state[i] = state[i + ahead] ^ twisted(state[i], state[i + 1]);
    // The words read here were written 227 words before, so 8 at a time are independent.
#pragma GCC ivdep
  for (std::int64_t i = words - ahead; i < words - 1; ++i) {
    state[i] = state[i + ahead - words] ^ twisted(state[i], state[i + 1]);
  }
  state[words - 1] = state[ahead - 1] ^ twisted(state[words - 1], state[0]);
}

VERNIER_AVX2 void temper(const Word* state, Word* to, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    Word y = state[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680U;
    y ^= (y << 15) & 0xEFC60000U;
    to[i] = y ^ (y >> 18);
  }
}

VERNIER_AVX2 void draw(Twister& twister, Word* to, std::int64_t count) {
  while (count > 0) {
    if (twister.left == 1) {
      renew(twister.state);
      twister.next = 0;
      twister.left = words + 1;
    }
    const auto some = std::min(count, twister.left - 1);
    temper(twister.state + twister.next, to, some);
    twister.next += some;
    twister.left -= some;
    to += some;
    count -= some;
  }
}

// The plain loop: to[i] = (53 bits of two numbers of the generator) < threshold ? one : 0.
template <class Bits>
VERNIER_AVX2 void draw_bernoulli(Twister& twister, std::int64_t threshold, Bits one, Bits* to, std::int64_t count) {
  constexpr std::int64_t together = 1024;
  Word drawn[2 * together];
  for (std::int64_t start = 0; start < count; start += together, to += together) {
    const auto some = std::min(together, count - start);
    draw(twister, drawn, 2 * some);
    // The first number of a pair has the higher bits, of which 53 - 32 count.
#pragma GCC ivdep
    for (std::int64_t i = 0; i < some; ++i) {
      const auto number = static_cast<std::int64_t>(drawn[2 * i] & 0x1FFFFFU) << 32 | drawn[2 * i + 1];
      to[i] = number < threshold ? one : Bits{0};
    }
  }
}

template <class Bits>
constexpr RandomKernels<Bits> random_kernels = {draw_bernoulli<Bits>};

}  // namespace

VERNIER_DEFINE_KERNELS(Instructions::avx2, random_kernels<std::uint8_t>, RandomKernels<std::uint8_t>)
VERNIER_DEFINE_KERNELS(Instructions::avx2, random_kernels<std::uint16_t>, RandomKernels<std::uint16_t>)
VERNIER_DEFINE_KERNELS(Instructions::avx2, random_kernels<std::uint32_t>, RandomKernels<std::uint32_t>)

}  // namespace vernier
