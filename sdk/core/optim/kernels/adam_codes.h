// One update of Adam or AdamW with averages in 8-bit codes, in one pass over blocks: the averages are unpacked, updated
// and packed again in registers and the first cache. The bits are those of unpack(), adam_update() and pack().
#pragma once

#include <cstdint>

#include "adam_kernel.h"

namespace vernier {

// A run of elements that starts with a block. There is one largest magnitude for each block.
struct CodedRun {
  std::int64_t count;
  float* parameter;
  const float* gradient;
  std::uint8_t *exp_avg, *exp_avg_sq;
  float *largest_avg, *largest_sq;
};

void adam_update_codes(Rounding rounding, const AdamNumbers& numbers, CodedRun run);

}  // namespace vernier
