// Durations as people write them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace vernier {

// Reads "2h30m", "90m", "45s", "1d12h": numbers with units, the largest unit first, each at most once. Returns nothing
// if the text is not a duration, or if the time is 0 or over ten years.
std::optional<std::chrono::seconds> duration_in(const std::string& text);

}  // namespace vernier
