// The 8-bit codes of optimizer states, with the numbers of sdk/core/optim/block_quantisation.h.
#pragma once

#include "grid.h"

namespace vernier::gpu {

struct CodeTable {
  float numbers[256];  // ascending
  float starts[256];   // the smallest number that becomes this code; the first is not used
};

constexpr CodeTable code_table(bool is_signed) {
  constexpr double tops[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};  // upper ends of the decades
  CodeTable table{};
  const int zero = is_signed ? 127 : 0;
  int at = zero;
  table.numbers[at] = 0;
  int parts = is_signed ? 1 : 2;
  for (const double top : tops) {
    for (int i = 0; i < parts; ++i) {
      table.numbers[++at] = static_cast<float>(top * (0.1 + 0.9 * (i + 0.5) / parts));
      if (is_signed) table.numbers[2 * zero - at] = -table.numbers[at];
    }
    parts *= 2;
  }
  table.numbers[255] = 1;
  for (int i = 1; i < 256; ++i) {
    table.starts[i] = static_cast<float>((static_cast<double>(table.numbers[i - 1]) + table.numbers[i]) / 2);
  }
  if (!is_signed) table.starts[1] = 1.40129846e-45F;  // the smallest above 0
  return table;
}

// NaN becomes 0: the block's largest number says that it is there.
VERNIER_BOTH std::uint8_t code_of(const CodeTable& table, float number) {
  int code = 0;
  VERNIER_UNROLL for (int step = 128; step > 0; step /= 2) {
    if (number >= table.starts[code + step]) code += step;
  }
  return static_cast<std::uint8_t>(code);
}

}  // namespace vernier::gpu
