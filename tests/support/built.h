// Which components this build has, for cases that need several of them. A case that needs one pack is in its suite.
#pragma once

#include <algorithm>
#include <array>

#include "common/left_out.h"

// Returns whether the build has all components: cases that read every document or configuration need them.
inline bool is_all_built() {
  constexpr std::array one_of_each = {"distributed/ddp", "task/graph", "precision/format", "callback/control"};
  return std::ranges::all_of(one_of_each, [](const char* plugin) { return vernier::left_out(plugin).empty(); });
}
