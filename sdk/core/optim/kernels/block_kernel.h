// Packs and unpacks blocks of codes on the host, on one thread. block_quantisation.h has the rule. With AVX-512,
// with AVX2 and without, the codes have the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace vernier {

constexpr std::int64_t codes_in_block = 256;

// Sixteen numbers at a time, with AVX-512.
bool has_wide_blocks();

constexpr std::int32_t magnitude_bits = 0x7fffffff;  // of a float

// A straight line for each decade instead of tables in memory, chosen in a register. n counts the codes from 0 up.
// Packing: n = floor(base + slope * number) in units of 2^-16, at most `end`, for numbers from `begin` on.
// Unpacking: number = (18 n + first) * unit; `unit` and `unit_rest` together are exact enough for float32's last bit.
struct alignas(32) DecadeTables {
  std::array<float, 8> begin, slope, base, end, first, unit, unit_rest;
};

class BlockKernel {
 public:
  explicit BlockKernel(bool is_signed);

  // Only the last block of a tensor may be smaller than codes_in_block. There is one `largest` for each block.
  void pack(const float* from, std::int64_t count, std::uint8_t* codes, float* largest) const;
  void unpack(const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) const;

  // One block at most, whose largest magnitude is known.
  void pack_block(const float* from, std::int64_t size, float largest, std::uint8_t* codes) const;
  const DecadeTables& lines() const { return lines_; }

  const std::array<float, 256>& numbers() const { return numbers_; }
  const std::array<float, 257>& starts() const { return starts_; }

 private:
  std::uint8_t code_of(float number) const;
  void plain_pack(const float* from, std::int64_t count, float divisor, std::uint8_t* codes) const;
  void make_lines();

  template <bool is_signed>
  static void wide_pack(const BlockKernel& kernel, const float* from, std::int64_t count, std::uint8_t* codes,
                        float* largest);
  template <bool is_signed>
  static void wide_unpack(const BlockKernel& kernel, const std::uint8_t* codes, const float* largest,
                          std::int64_t count, float* to);

  // Packs and unpacks one block.
  template <bool is_signed>
  static void widest_pack(const BlockKernel& kernel, const float* from, std::int64_t size, float most,
                          std::uint8_t* codes);
  template <bool is_signed>
  static void widest_unpack(const BlockKernel& kernel, const std::uint8_t* codes, float most, std::int64_t size,
                            float* to);

  // An interval has all float32 with the same sign, exponent and first seven bits of fraction. At most two neighbouring
  // codes begin in one interval.
  static constexpr int dropped_bits = 16;

  bool is_signed_;
  std::array<float, 256> numbers_;        // ascending
  std::array<float, 257> starts_;         // the smallest number that becomes this code; the last is infinite
  std::vector<std::uint8_t> least_code_;  // of each interval

  DecadeTables lines_;  // of the same
};

}  // namespace vernier
