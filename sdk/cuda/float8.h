// The cast of a matrix to fp8 with its largest magnitude and its transposed copy, in one pass. The bits are those of
// float8_quantize() and float8_amax() (sdk/core/amp/float8.cpp).
#pragma once

#include "kinds.h"

namespace vernier::gpu {

// Rounds a float32 to the nearest number of a format with so many bits, ties to even. most: the largest number; what is
// beyond it becomes it. NaN becomes 0x7f with its sign.
template <int exponent_bits, int fraction_bits>
VERNIER_BOTH std::uint8_t to_float8(float number, float most) {
  constexpr std::uint32_t bias = (1U << (exponent_bits - 1)) - 1;
  constexpr std::uint32_t first_normal = (128 - bias) << 23;
  // A float32 whose last bit is that of the format's subnormal numbers: an addition rounds to it.
  constexpr std::uint32_t magic = (151 - bias - fraction_bits) << 23;
  constexpr int dropped = 23 - fraction_bits;
  const std::uint32_t bits = bits_as<std::uint32_t>(number), sign = bits >> 31 << 7;
  float size = bits_as<float>(bits & 0x7fffffffU);
  if (is_nan(number)) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (size > most) size = most;
  std::uint32_t code = bits_as<std::uint32_t>(size);
  if (code < first_normal) {
    code = bits_as<std::uint32_t>(size + bits_as<float>(magic)) - magic;
  } else {
    const std::uint32_t half = (1U << (dropped - 1)) - 1, odd = code >> dropped & 1;
    code = (code - ((127 - bias) << 23) + half + odd) >> dropped;
  }
  return static_cast<std::uint8_t>(sign | code);
}

// Sets *largest to the larger of the two. The bits of magnitudes are ordered as they are, and those of NaN come last.
VERNIER_BOTH void raise(float* largest, std::uint32_t magnitude) {
#if defined(__CUDA_ARCH__)
  atomicMax(reinterpret_cast<unsigned*>(largest), magnitude);
#else
  if (magnitude > bits_as<std::uint32_t>(*largest)) *largest = bits_as<float>(magnitude);
#endif
}

// A block has a tile of 64 x 64 numbers. Each of its outputs may be nullptr.
// float8_scale() of the largest magnitude.
VERNIER_BOTH float scale_of(float amax, const Float8Cast& cast) {
  constexpr float largest = 3.402823466e38F;
  if (!(amax > 0 && amax <= largest)) return 1;  // NaN too
  const float scale = fminf(cast.highest / amax, largest);
  return cast.power_of_two ? bits_as<float>(bits_as<std::uint32_t>(scale) & 0x7f800000U) : scale;
}

template <class Input, int exponent_bits, int fraction_bits>
struct CastToFloat8 {
  static constexpr unsigned threads = 256, side = 64, step = threads / side;
  struct Shared {
    std::uint32_t largest[threads];
    std::uint8_t tile[side][side + 4];  // the four keep columns in different banks
  };
  const typename Input::Number* from;
  std::int64_t tiles_across;
  Float8Cast cast;
  float most;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const std::int64_t rows = cast.rows, columns = cast.columns;
    const std::int64_t first_row = block.index / tiles_across * side, first_column = block.index % tiles_across * side;
    auto* const values = cast.values;
    auto* const transposed = cast.transposed;
    const float factor = values == nullptr && transposed == nullptr ? 0.0F
                         : cast.scale != nullptr                    ? *cast.scale
                                                                    : scale_of(*cast.amax, cast);
    block.each([&](unsigned thread) {
      const unsigned column = thread % side;
      std::uint32_t own = 0;
      for (unsigned row = thread / side; row < side; row += step) {
        const std::int64_t i = first_row + row, j = first_column + column;
        if (i >= rows || j >= columns) continue;
        const float number = Input::wide(from[i * columns + j]);
        const std::uint32_t magnitude = bits_as<std::uint32_t>(number) & 0x7fffffffU;
        own = magnitude > own ? magnitude : own;
        const auto code = to_float8<exponent_bits, fraction_bits>(number * factor, most);
        if (values != nullptr) values[i * columns + j] = code;
        shared.tile[row][column] = code;
      }
      shared.largest[thread] = own;
    });
    if (transposed != nullptr) {
      block.each([&](unsigned thread) {
        const unsigned row = thread % side;
        for (unsigned column = thread / side; column < side; column += step) {
          const std::int64_t i = first_row + row, j = first_column + column;
          if (i < rows && j < columns) transposed[j * rows + i] = shared.tile[row][column];
        }
      });
    }
    block.each([&](unsigned thread) {
      if (cast.scales == nullptr || block.index != 0 || thread != 0) return;
      cast.scales[0] = 1 / factor;
      cast.scales[1] = factor;
    });
    if (cast.largest == nullptr) return;
    for (unsigned half = threads / 2; half > 0; half /= 2) {
      block.each([&](unsigned thread) {
        if (thread >= half) return;
        const std::uint32_t other = shared.largest[thread + half];
        if (other > shared.largest[thread]) shared.largest[thread] = other;
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) raise(cast.largest, shared.largest[0]);
    });
  }
};

// The transposed copy of a matrix of bytes.
struct TransposeBytes {
  static constexpr unsigned threads = 256, side = 64, step = threads / side;
  struct Shared {
    std::uint8_t tile[side][side + 4];
  };
  const std::uint8_t* from;
  std::int64_t rows, columns, tiles_across;
  std::uint8_t* to;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const std::int64_t first_row = block.index / tiles_across * side, first_column = block.index % tiles_across * side;
    block.each([&](unsigned thread) {
      const std::int64_t j = first_column + thread % side;
      for (unsigned row = thread / side; row < side; row += step) {
        const std::int64_t i = first_row + row;
        if (i < rows && j < columns) shared.tile[row][thread % side] = from[i * columns + j];
      }
    });
    block.each([&](unsigned thread) {
      const std::int64_t i = first_row + thread % side;
      for (unsigned column = thread / side; column < side; column += step) {
        const std::int64_t j = first_column + column;
        if (i < rows && j < columns) to[j * rows + i] = shared.tile[thread % side][column];
      }
    });
  }
};

}  // namespace vernier::gpu
