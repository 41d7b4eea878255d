// The row of a metric in docs/reference/metrics.md.
#pragma once

#include <vernier/metrics.h>

#include <cmath>
#include <string>

// "; higher is better, 0 to 1": which values are better, and their range.
inline std::string judged(const vernier::MetricInfo& info) {
  const auto number = [](double value) { return std::to_string(static_cast<int>(value)); };
  const bool has_least = std::isfinite(info.least), has_most = std::isfinite(info.most);
  if (info.better == vernier::Better::unknown) return "";
  std::string text = info.better == vernier::Better::higher ? "; higher is better" : "; lower is better";
  if (has_least && has_most) text += ", " + number(info.least) + " to " + number(info.most);
  if (has_least && !has_most) text += ", from " + number(info.least);
  if (!has_least && has_most) text += ", to " + number(info.most);
  return text;
}

inline std::string metric_row(const vernier::MetricInfo& info, const std::string& source) {
  return "| `" + info.name + "` | " + info.unit + (info.unit.empty() ? "" : " ") + "| " + info.meaning + judged(info) +
         (info.is_count ? "; a count" : "") + (info.varies ? "; differs between equal runs" : "") + " | " + source +
         " |\n";
}
