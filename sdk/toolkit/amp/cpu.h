// Capabilities of the processor, as LibTorch reports them.
#pragma once

namespace vernier {

bool cpu_has(const char* capability);  // "amx_bf16"

}  // namespace vernier
