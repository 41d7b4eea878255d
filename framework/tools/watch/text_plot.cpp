#include "text_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vernier {

namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

// The mean of the values on each column; NaN where there is none.
std::vector<double> means(const Series& series, const Range& steps, std::size_t columns) {
  std::vector<double> sums(columns), counts(columns);
  const double span = std::max(1.0, steps.high - steps.low);
  for (const auto& [step, value] : series.points) {
    if (!std::isfinite(value)) continue;
    const double share = (static_cast<double>(step) - steps.low) / span;
    const auto column = static_cast<std::size_t>(std::llround(share * static_cast<double>(columns - 1)));
    sums[column] += value;
    ++counts[column];
  }
  for (std::size_t i = 0; i < columns; ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / counts[i] : std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

}  // namespace

std::string text_plot(const std::vector<TextCurve>& curves, std::size_t columns, std::size_t rows) {
  constexpr std::size_t label = 10;  // columns of the numbers at the left
  if (columns < label + 10 || rows < 2) return "";
  Range steps, values;
  for (const auto& curve : curves) {
    for (const auto& [step, value] : curve.series->points) {
      if (std::isfinite(value)) steps.include(static_cast<double>(step));
    }
  }
  if (steps.low > steps.high) return "";
  const std::size_t width = columns - label - 2;
  std::vector<std::vector<double>> drawn;
  for (const auto& curve : curves) drawn.push_back(means(*curve.series, steps, width));
  for (const auto& curve : drawn) {
    for (const double value : curve) {
      if (std::isfinite(value)) values.include(value);
    }
  }
  const double span = values.high > values.low ? values.high - values.low : 1;
  std::vector<std::vector<std::string>> cells(rows, std::vector<std::string>(width, " "));
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      if (!std::isfinite(drawn[k][i])) continue;
      const double height = (values.high - drawn[k][i]) / span * static_cast<double>(rows - 1);
      cells[static_cast<std::size_t>(std::llround(height))][i] = curves[k].mark;
    }
  }
  std::string text;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool has_label = row == 0 || row + 1 == rows;
    text += padded(has_label ? text_of(row == 0 ? values.high : values.low) : "", label) + " |";
    std::string line;
    for (const auto& cell : cells[row]) line += cell;
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  const auto first = std::to_string(std::llround(steps.low)), last = std::to_string(std::llround(steps.high));
  return text + std::string(label + 2, ' ') + first + padded(last, width - std::min(width, first.size())) + '\n';
}

}  // namespace vernier
