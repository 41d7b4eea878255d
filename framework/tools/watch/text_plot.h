// Curves drawn with characters.
#pragma once

#include <string>
#include <vector>

#include "tools/common/run_files.h"

namespace vernier {

struct TextCurve {
  const Series* series;
  std::string mark;  // one character of UTF-8
};

// rows lines of at most `columns` characters, and below them one with the first and the last step. Each column has the
// mean of the values that fall on it. Values that are not finite are left out. "" where no curve has a value.
std::string text_plot(const std::vector<TextCurve>& curves, std::size_t columns, std::size_t rows);

}  // namespace vernier
