// Stochastic rounding of float32 to bfloat16. A number at the fraction p of the way to the next bfloat16 rounds up with
// probability p, so that the mean is exact. A number that bfloat16 represents stays, and so does NaN. The fraction is
// in the 16 low bits of the float32: 16 random bits are added to them, and the sum is truncated. Source: Gupta et al.,
// Deep Learning with Limited Numerical Precision, ICML 2015.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <array>
#include <bit>
#include <cstdint>

#include "base/parallel.h"

namespace vernier {

// The number of elements for one sequence of random numbers, whatever the number of threads.
constexpr std::int64_t rounding_chunk = 4096;

inline std::int64_t rounding_chunks(std::int64_t count) {
  return (count + rounding_chunk - 1) / rounding_chunk;
}

// Fills `noise` with 16-bit random numbers, for one chunk. Sixteen xoshiro128++ generators (Blackman and Vigna, ACM
// Transactions on Mathematical Software 2021) run side by side. Compilers vectorize them, which takes a fifth of
// Philox's time. Philox seeds them, with the sequence `chunk` and its own offset for each draw.
inline void fill_with_noise(std::uint32_t* __restrict noise, std::uint64_t seed, std::uint64_t chunk,
                            std::uint64_t draw) {
  constexpr std::int64_t lanes = 16;
  std::uint32_t a[lanes], b[lanes], c[lanes], d[lanes];
  at::Philox4_32 random(seed, chunk, draw * lanes);
  for (std::int64_t k = 0; k < lanes; ++k) {
    a[k] = random();
    b[k] = random();
    c[k] = random();
    d[k] = random();
  }
  for (std::int64_t i = 0; i < rounding_chunk; i += 2 * lanes) {
    for (std::int64_t k = 0; k < lanes; ++k) {
      const std::uint32_t word = std::rotl(a[k] + d[k], 7) + a[k], shifted = b[k] << 9;
      c[k] ^= a[k];
      d[k] ^= b[k];
      b[k] ^= c[k];
      a[k] ^= d[k];
      c[k] ^= shifted;
      d[k] = std::rotl(d[k], 11);
      noise[i + k] = word & 0xffff;
      noise[i + lanes + k] = word >> 16;
    }
  }
}

// Rounds one chunk on the host.
inline void round_chunk(const float* __restrict from, c10::BFloat16* __restrict to,
                        const std::uint32_t* __restrict noise, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    to[i].x = static_cast<std::uint16_t>((is_nan ? 0x7fc00000 : bits + noise[i]) >> 16);
  }
}

// Rounds on the host. The result depends only on seed, draw and the element's index, counted in chunks from `first` on.
inline void round_on_host(const float* from, c10::BFloat16* to, std::int64_t count, std::uint64_t seed,
                          std::uint64_t first, std::uint64_t draw) {
  const auto chunks = static_cast<std::size_t>(rounding_chunks(count));
  for_each_chunk(chunks, /*chunks_a_thread=*/4, [&](std::size_t chunk) {
    std::array<std::uint32_t, rounding_chunk> noise;
    fill_with_noise(noise.data(), seed, first + chunk, draw);
    const auto start = static_cast<std::int64_t>(chunk) * rounding_chunk, left = count - start;
    // Compilers vectorize the loop for a constant size.
    if (left >= rounding_chunk) {
      round_chunk(from + start, to + start, noise.data(), rounding_chunk);
    } else {
      round_chunk(from + start, to + start, noise.data(), left);
    }
  });
}

// Rounds on any device, with LibTorch's operators and a generator of that device.
inline void round_by_operators(const at::Tensor& from, const at::Tensor& to, const at::Generator& generator) {
  const auto noise = at::empty_like(from, at::kInt).random_(0, 65536, generator);
  const auto bits = noise.add_(from.view(at::kInt)).bitwise_and_(-65536);
  to.copy_(at::where(from.isnan(), from, bits.view(at::kFloat)));
}

}  // namespace vernier
