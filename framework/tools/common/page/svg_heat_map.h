// A metric of many layers over the steps as SVG: a row for each layer, and the darker the larger.
#pragma once

#include <string>
#include <vector>

#include "tools/common/run_files.h"

namespace vernier {

struct HeatMap {
  std::string kind;                      // "layer_grad_norm"
  std::vector<const Series*> of_layers;  // "layer_grad_norm/h.0.mlp" and so on, in the order of the model
};

// The metrics of a run that have a layer behind a slash, by what stands before it.
std::vector<HeatMap> heat_maps_of(const RunFiles& run);
bool is_of_a_layer(const Series& series);

// Shades are logarithmic where all values are above 0 and the largest is 100 times the smallest or more. Of many steps
// each cell has the largest value; a value that is not finite has a colour of its own. Each cell has its numbers as a
// title. "" where there is no value.
std::string svg_heat_map(const HeatMap& map);

}  // namespace vernier
