// Curves as SVG, for a page of HTML that needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "tools/common/run_files.h"

namespace vernier {

// Text for HTML and for the values of its attributes.
std::string escaped(const std::string& text);

struct SvgCurve {
  std::string label;
  const Series* series;
  std::size_t colour = 0;                            // class "c0", "c1", …
  const std::vector<NoticeSeen>* notices = nullptr;  // marked at the bottom, with their words as titles
};

// One chart, with axes that fit all curves. Of many points the lowest and the highest in each column are drawn, so that
// no spike is lost. A value that is not finite breaks its curve. "" where no curve has a value.
std::string svg_plot(const std::vector<SvgCurve>& curves);

}  // namespace vernier
