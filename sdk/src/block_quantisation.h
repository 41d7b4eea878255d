// Numbers in 8 bits, in blocks of 256 with their largest magnitude in float32: block-wise dynamic quantisation (Dettmers
// et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022). A code stands for one of 256 numbers in [-1, 1], or
// [0, 1], times the block's largest: seven decades, each with twice as many numbers as the one below. A number becomes the
// nearest, but where there is no sign one that is not 0 does not become 0: a mean of squares that vanished would leave a
// gradient that is small for once to be divided by eps alone. A nan makes a block nan.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace vernier {

class BlockQuantisation {
 public:
  static constexpr std::int64_t block = 256;
  static std::int64_t blocks(std::int64_t count) { return (count + block - 1) / block; }
  // The numbers of [-1, 1], or of [0, 1]. Made at the first call.
  static const BlockQuantisation& of(bool is_signed);

  // On the host: whole blocks, but for the last of a tensor.
  void pack(const float* from, std::int64_t count, std::uint8_t* codes, float* largest) const;
  void unpack(const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) const;

  // The same with operators, on any device: 1-D, float32, uint8 and one float32 a block.
  struct Packed {
    at::Tensor codes, largest;
  };
  Packed pack(const at::Tensor& numbers) const;
  at::Tensor unpack(const Packed& packed) const;

  const std::array<float, 256>& numbers() const { return numbers_; }

 private:
  explicit BlockQuantisation(bool is_signed);
  // A float32's sign, exponent and eight bits of its fraction: two neighbouring codes at most begin in such an interval.
  static constexpr int dropped_bits = 15;

  std::array<float, 256> numbers_;           // ascending
  std::array<float, 257> starts_;            // the least number that becomes this code; the last is infinite
  std::vector<std::int32_t> least_code_;     // of the interval; 32 bits, which vector instructions look up
};

}  // namespace vernier
