// Packs and unpacks blocks of codes on the host, on one thread. block_quantisation.h has the rule. With AVX-512,
// with AVX2 and without, the codes have the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/targets.h"

namespace vernier {

constexpr std::int64_t codes_in_block = 256;

constexpr std::int32_t magnitude_bits = 0x7fffffff;  // the bits of a float without its sign

// A straight line for each decade instead of tables in memory, chosen in a register. n counts the codes from 0 up.
// Packing: n = floor(base + slope * number) in units of 2^-16, at most `end`, for numbers from `begin` on.
// Unpacking: number = (18 n + first) * unit; `unit` and `unit_rest` together are exact enough for float32's last bit.
struct alignas(32) DecadeTables {
  std::array<float, 8> begin, slope, base, end, first, unit, unit_rest;
};

constexpr double unit_of_code = 65536;
constexpr double doubtful = 6;  // so near to a whole code a line may be wrong: the roundings add up to less than 4

// The bits of magnitudes are ordered as they are, and those of nan come last.
VERNIER_INLINE float largest_of(const float* from, std::int64_t size) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < size; ++i) most = std::max(most, std::bit_cast<std::int32_t>(from[i]) & magnitude_bits);
  return std::bit_cast<float>(most);
}

class BlockKernel;
// Kernels for BlockKernel's functions of these names.
struct CodeKernels {
  void (*pack)(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes, float* largest);
  void (*unpack)(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest, std::int64_t count,
                 float* to);
};

class BlockKernel {
 public:
  explicit BlockKernel(bool is_signed);

  // Only the last block of a tensor may be smaller than codes_in_block. There is one `largest` for each block.
  void pack(const float* from, std::int64_t count, std::uint8_t* codes, float* largest) const;
  void unpack(const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) const;

  // The plain loops. Numbers of one block, whose largest magnitude is `most`; and codes.
  void plain_pack(const float* from, std::int64_t count, float most, std::uint8_t* codes) const {
    const float divisor = most == 0 ? 1.0F : most;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = code_of(from[i] / divisor);
  }
  void plain_unpack(const std::uint8_t* codes, float most, std::int64_t count, float* to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = numbers_[codes[i]] * most;
  }

  bool is_signed() const { return is_signed_; }
  const DecadeTables& lines() const { return lines_; }

  const std::array<float, 256>& numbers() const { return numbers_; }
  const std::array<float, 257>& starts() const { return starts_; }

 private:
  std::uint8_t code_of(float number) const;
  void make_lines();

  // An interval has all float32 with the same sign, exponent and first seven bits of fraction. At most two neighbouring
  // codes begin in one interval.
  static constexpr int dropped_bits = 16;

  bool is_signed_;
  std::array<float, 256> numbers_;        // ascending
  std::array<float, 257> starts_;         // the smallest number that becomes this code; the last is infinite
  std::vector<std::uint8_t> least_code_;  // the least code in each interval

  DecadeTables lines_;  // the same numbers as straight lines
};

}  // namespace vernier
