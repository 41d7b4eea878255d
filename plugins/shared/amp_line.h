// The statistics of mixed precision as one line for people:
//   scale 65536, growth tracker 12, overflows 3 (0.6%), underflow in 2 measurements (0.4% of gradients), mixed
//   precision in 100% of 500 steps
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/amp_stats.h>
#include <vernier/memory.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

// The host waits for the device if underflow was measured.
inline std::string amp_line(const vernier::AmpStats& amp) {
  const auto percent = [](double share) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2g%%", 100 * share);
    return std::string(share >= 0.995 ? "100%" : text.data());
  };
  std::string text;
  const auto scale = amp.current_scale();
  text += scale ? c10::str("scale ", *scale, ", ") : "the loss is not scaled, ";
  if (const auto tracker = amp.growth_tracker()) text += c10::str("growth tracker ", *tracker, ", ");
  if (!amp.history().empty()) {  // there is a scaler, or there was one before a swap
    text += c10::str("overflows ", amp.overflow_count(), " (", percent(overflow_ratio(amp)), "), ");
  }
  if (const auto shares = amp.underflow()) {
    text += c10::str("underflow in ", shares->count, shares->count == 1 ? " measurement (" : " measurements (",
                     percent(shares->mean), " of gradients), ");
  }
  text += c10::str("mixed precision in ", percent(amp_usage_ratio(amp)), " of ", amp.total_steps(), " steps");
  if (const auto saved = amp.avg_memory_savings()) {
    text += ", a step takes " + vernier::memory_text(std::llround(std::abs(*saved) * 1e9)) +
            (*saved < 0 ? " more" : " less") + " than in float32";
  }
  return text;
}
