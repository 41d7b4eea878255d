// Rounding of float32 masters to bfloat16 weights, with Kahan compensation or at random. The bits are those of the CPU
// (sdk/core/amp/half_weights.cpp, stochastic_rounding.h).
#pragma once

#include "chunks.h"
#include "elements.h"
#include "kinds.h"

namespace vernier::gpu {

struct KahanRule {
  using Loaded = float;
  const float* master;
  std::uint16_t *weight, *compensation;

  VERNIER_BOTH float load(std::int64_t i) const { return master[i]; }
  VERNIER_BOTH void update(std::int64_t i, float number) const {
    const auto rounded = float_to_bfloat16(number);
    weight[i] = rounded;
    compensation[i] = float_to_bfloat16(number - bfloat16_to_float(rounded));
  }
};

struct KahanRounding {
  static constexpr unsigned threads = 256;
  struct Shared {};
  Chunks<RoundedWeight, 64, 8192> chunks;
  const float* skip;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    if (is_skipped(skip)) return;
    const auto place = chunks.at(block.index);
    const RoundedWeight& weight = chunks.items[place.item];
    const KahanRule rule{weight.master, weight.weight, weight.compensation};
    block.each([&](unsigned thread) { update_elements<threads>(place, thread, rule); });
  }
};

// Philox4x32 with ten rounds (Salmon et al., SC 2011), as in ATen/core/PhiloxRNGEngine.h: the four numbers of one
// counter.
struct Philox {
  std::uint32_t numbers[4];
  VERNIER_BOTH Philox(std::uint64_t seed, std::uint64_t sequence, std::uint64_t offset)
      : numbers{low(offset), high(offset), low(sequence), high(sequence)} {
    std::uint32_t key = low(seed), other_key = high(seed);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xd2511f53U} * numbers[0], b = std::uint64_t{0xcd9e8d57U} * numbers[2];
      numbers[0] = high(b) ^ numbers[1] ^ key;
      numbers[1] = low(b);
      numbers[2] = high(a) ^ numbers[3] ^ other_key;
      numbers[3] = low(a);
      key += 0x9e3779b9U;
      other_key += 0xbb67ae85U;
    }
  }
  static VERNIER_BOTH std::uint32_t low(std::uint64_t number) { return static_cast<std::uint32_t>(number); }
  static VERNIER_BOTH std::uint32_t high(std::uint64_t number) { return static_cast<std::uint32_t>(number >> 32); }
};

// One of the sixteen xoshiro128++ generators of a sequence of 4096 elements.
struct Xoshiro {
  std::uint32_t a, b, c, d;
  VERNIER_BOTH explicit Xoshiro(const Philox& seed)
      : a(seed.numbers[0]), b(seed.numbers[1]), c(seed.numbers[2]), d(seed.numbers[3]) {}
  static VERNIER_BOTH std::uint32_t turned(std::uint32_t x, int by) { return x << by | x >> (32 - by); }
  VERNIER_BOTH std::uint32_t operator()() {
    const std::uint32_t word = turned(a + d, 7) + a, shifted = b << 9;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= shifted;
    d = turned(d, 11);
    return word;
  }
};

// A thread has one generator, and the elements that it draws for.
struct StochasticRounding {
  static constexpr unsigned threads = 128, lanes = 16;
  static constexpr std::int64_t sequence = 4096, sequences = threads / lanes;
  struct Shared {};
  Chunks<RoundedWeight, 64, sequence * sequences> chunks;
  std::uint64_t seed, draw;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    const auto place = chunks.at(block.index);
    const RoundedWeight& weight = chunks.items[place.item];
    block.each([&](unsigned thread) {
      const unsigned lane = thread % lanes;
      const std::int64_t start = place.start + thread / lanes * sequence, end = least(start + sequence, place.end);
      if (start >= end) return;
      const std::uint64_t number = weight.first_sequence + static_cast<std::uint64_t>(start / sequence);
      Xoshiro random{Philox(seed, number, draw * lanes + lane)};
      for (std::int64_t i = start + lane; i < end; i += 2 * lanes) {
        const std::uint32_t word = random();
        round(weight, i, word & 0xffffU);
        if (i + lanes < end) round(weight, i + lanes, word >> 16);
      }
    });
  }
  static VERNIER_BOTH void round(const RoundedWeight& weight, std::int64_t i, std::uint32_t noise) {
    const float number = weight.master[i];
    const auto bits = is_nan(number) ? 0x7fc00000U : bits_as<std::uint32_t>(number) + noise;
    weight.weight[i] = static_cast<std::uint16_t>(bits >> 16);
  }
};

}  // namespace vernier::gpu
