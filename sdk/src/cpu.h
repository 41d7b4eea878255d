// What the processor can do, as LibTorch knows it.
#pragma once

namespace vernier {

bool cpu_has(const char* capability);  // "amx_bf16"

}  // namespace vernier
