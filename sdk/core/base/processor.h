// Instructions of this processor. LibTorch's variable ATEN_CPU_CAPABILITY holds here too: with "avx2" or "default" a
// processor counts as one without the newer instructions.
#pragma once

#include <vernier/abi.h>

namespace vernier {

// Sets of instructions: avx2 has FMA and F16C too; avx512 has F, BW, CD, DQ and VL; plain is what each x86-64 has.
enum class Instructions { plain, avx2, avx512, avx512_bf16 };

VERNIER_API bool has(Instructions set);

// True if products of bfloat16 take less time than those of float32: with AMX, and with AMD's AVX512-BF16. Intel's
// multiplies half as many numbers a second as float32's instructions do.
bool gains_by_bfloat16();

// A capability as LibTorch reports it, whatever ATEN_CPU_CAPABILITY says: "amx_bf16".
bool cpu_has(const char* capability);

}  // namespace vernier
