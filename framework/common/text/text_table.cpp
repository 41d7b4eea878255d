#include "text_table.h"

#include <algorithm>

namespace vernier {

namespace {

std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string aligned(const TextRows& rows, const std::string& sides) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    const bool is_short = row.size() < rows.front().size();
    for (std::size_t i = 0; i < row.size() - (is_short ? 1 : 0); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::vector<std::string> cells = row;
    for (std::size_t i = 0; i < std::min(cells.size(), sides.size()); ++i) {
      const bool is_last_of_short = i + 1 == row.size() && row.size() < rows.front().size();
      if (sides[i] == 'r' && !is_last_of_short) cells[i].insert(0, widths[i] - columns_of(cells[i]), ' ');
    }
    text += aligned_row(cells, widths) + '\n';
  }
  return text;
}

std::string aligned_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto missing = widths[i] - std::min(widths[i], columns_of(row[i]));
    line += row[i] + std::string(missing + (widths[i] > 0 ? 2 : 0), ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

}  // namespace vernier
