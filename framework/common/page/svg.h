// Curves and heat maps as SVG, for a page of HTML that needs nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/run_files.h"

namespace vernier {

// Text for HTML and for the values of its attributes.
std::string escaped(const std::string& text);

struct SvgCurve {
  std::string label;
  const Series* series;
  std::size_t colour = 0;                            // class "c0", "c1", …
  const std::vector<NoticeSeen>* notices = nullptr;  // marked at the bottom, with their words as titles
  bool is_dashed = false;
};

// One chart, with axes that fit all curves. Of many points the lowest and the highest in each column are drawn, so that
// no spike is lost. Rare values far beyond all others, but for a curve's first ones, are cut off: a mark at the edge
// has the value as its title. A value that is not finite breaks its curve. "" where no curve has a value. A step is
// `unit` of what the axis shows.
std::string svg_plot(const std::vector<SvgCurve>& curves, const std::string& axis = "step", double unit = 1);

// A bar of parts side by side, in order, with their names and shares below. "" if they are all 0.
std::string svg_parts(const std::vector<std::pair<std::string, double>>& parts);

// A metric of many layers over the steps: a row for each layer, and the darker the larger.
struct HeatMap {
  std::string kind;                      // "layer_grad_norm"
  std::vector<const Series*> of_layers;  // "layer_grad_norm/h.0.mlp" and so on, in the order of the model
};

// The metrics of a run that have a layer behind a slash, by what stands before it.
std::vector<HeatMap> heat_maps_of(const RunFiles& run);
bool is_of_a_layer(const Series& series);

// Shades are logarithmic where all values are above 0 and the largest is 100 times the smallest or more. Of many steps
// each cell has the largest value; a value that is not finite has a colour of its own. Each cell has its numbers as a
// title. "" if there is no value.
std::string svg_heat_map(const HeatMap& map);

}  // namespace vernier
