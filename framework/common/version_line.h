// The line of `vernier --version`.
#pragma once

#include <vernier/abi.h>

namespace vernier {

inline constexpr const char* version_line =
    "vernier " VERNIER_VERSION ", plugin ABI " VERNIER_TEXT(VERNIER_ABI) ", " VERNIER_BUILD;

}  // namespace vernier
