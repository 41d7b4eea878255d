// Instructions of this processor. LibTorch's variable ATEN_CPU_CAPABILITY holds here too: with "avx2" or "default" a
// processor counts as one without the newer instructions.
#pragma once

#include <vernier/abi.h>

namespace vernier {

VERNIER_API bool has_avx512();
bool multiplies_bfloat16();  // AVX512-BF16; LibTorch decides by itself between it and AMX
VERNIER_API bool has_avx2();             // with FMA and F16C

// True if products of bfloat16 take less time than those of float32: with AMX, and with AMD's AVX512-BF16. Intel's
// multiplies half as many numbers a second as float32's instructions do.
bool gains_by_bfloat16();

// A capability as LibTorch reports it, whatever ATEN_CPU_CAPABILITY says: "amx_bf16".
bool cpu_has(const char* capability);

}  // namespace vernier
