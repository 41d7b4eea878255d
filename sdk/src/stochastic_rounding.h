// float32 to bfloat16, up or down by chance: a number that lies a share p of the way up to its neighbour becomes that
// one with probability p, so that the mean is exact, and one that bfloat16 holds stays. The 16 low bits of a float32
// are that share: 16 random bits are added to it and the sum is cut off. nan stays nan. Gupta et al., Deep Learning
// with Limited Numerical Precision, ICML 2015.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace vernier {

// Elements that one sequence of random numbers is for, whatever the number of threads.
constexpr std::int64_t rounding_chunk = 4096;

inline std::int64_t rounding_chunks(std::int64_t count) {
  return (count + rounding_chunk - 1) / rounding_chunk;
}

inline std::uint16_t rounded(float value, std::uint32_t noise) {
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + (noise & 0xffff)) >> 16);
}

// On the host. Philox counts: sequence `first + k` for chunk k, and in it a stretch of its own for each draw. So
// nothing but three numbers decides what an element becomes.
inline void round_on_host(const float* from, c10::BFloat16* to, std::int64_t count, std::uint64_t seed,
                          std::uint64_t first, std::uint64_t draw) {
  at::parallel_for(0, rounding_chunks(count), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto chunk = begin; chunk < end; ++chunk) {
      at::Philox4_32 random(seed, first + static_cast<std::uint64_t>(chunk), draw * (rounding_chunk / 8));
      const auto last = std::min(count, (chunk + 1) * rounding_chunk);
      for (auto i = chunk * rounding_chunk; i < last; i += 2) {
        const std::uint32_t noise = random();
        to[i].x = rounded(from[i], noise);
        if (i + 1 < last) to[i + 1].x = rounded(from[i + 1], noise >> 16);
      }
    }
  });
}

// On any device, with LibTorch's operators and a generator of the device.
inline void round_by_operators(const at::Tensor& from, const at::Tensor& to, const at::Generator& generator) {
  const auto noise = at::empty_like(from, at::kInt).random_(0, 65536, generator);
  const auto bits = noise.add_(from.view(at::kInt)).bitwise_and_(-65536);
  to.copy_(at::where(from.isnan(), from, bits.view(at::kFloat)));
}

}  // namespace vernier
