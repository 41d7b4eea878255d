#include "svg.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "common/text/numbers.h"

namespace vernier {

namespace {

constexpr std::size_t most_columns = 60, most_rows = 200;
constexpr double width = 640, right = 10, top = 4, bottom = 34, row_height = 14, letter = 6.2;
constexpr double paper = 0.08;  // the share of the colour that the smallest value has
constexpr double wide = 100;    // the ratio of largest and smallest from which on shades are logarithmic

std::string layer_of(const Series& series) {
  return series.name.substr(series.name.find('/') + 1);
}

// Steps that share a column, with their first and last.
struct Columns {
  std::vector<std::int64_t> steps;  // all that have a value, in order
  std::size_t each = 1;             // how many of them a column has
  std::size_t count() const { return (steps.size() + each - 1) / each; }
  std::size_t of(std::int64_t step) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(steps, step) - steps.begin()) / each;
  }
  std::string words(std::size_t column) const {
    const auto first = steps[column * each], last = steps[std::min(steps.size(), (column + 1) * each) - 1];
    return first == last ? "step " + std::to_string(first)
                         : "steps " + std::to_string(first) + " to " + std::to_string(last);
  }
};

Columns columns_of(const HeatMap& map) {
  std::set<std::int64_t> steps;
  for (const auto* series : map.of_layers) {
    for (const auto& point : series->points) steps.insert(point.step);
  }
  return {{steps.begin(), steps.end()}, (steps.size() + most_columns - 1) / most_columns};
}

struct Scale : Extent {
  bool is_logarithmic() const { return low > 0 && high >= wide * low; }
  double shade(double value) const {
    if (high <= low) return 1;
    const auto place = [&](double number) { return is_logarithmic() ? std::log(number) : number / 2; };
    return paper + (1 - paper) * (place(value) - place(low)) / (place(high) - place(low));
  }
};

Scale scale_of(const HeatMap& map) {
  Scale scale;
  for (const auto* series : map.of_layers) {
    for (const auto& point : series->points) scale.include(point.value);
  }
  return scale;
}

// The largest value of each column; NaN and inf win.
std::map<std::size_t, double> cells_of(const Series& series, const Columns& columns) {
  std::map<std::size_t, double> cells;
  for (const auto& point : series.points) {
    const auto [cell, is_new] = cells.try_emplace(columns.of(point.step), point.value);
    const bool is_worse = !std::isfinite(point.value) || (std::isfinite(cell->second) && point.value > cell->second);
    if (!is_new && is_worse) cell->second = point.value;
  }
  return cells;
}

std::string rounded(double number) {
  return printed("%.1f", number);
}

struct Frame {
  double left, cell_width;
};

void draw_row(const Series& series, double y, const Columns& columns, const Scale& scale, const Frame& frame,
              std::ostream& out) {
  const auto layer = layer_of(series);
  out << "<text x=" << rounded(frame.left - 6) << " y=" << y + row_height - 4 << " text-anchor=end>" << escaped(layer)
      << "</text>\n";
  for (const auto& [column, value] : cells_of(series, columns)) {
    out << "<rect class=" << (std::isfinite(value) ? "heat" : "bad")
        << " x=" << rounded(frame.left + static_cast<double>(column) * frame.cell_width) << " y=" << y
        << " width=" << rounded(frame.cell_width - 0.5) << " height=" << row_height - 1;
    if (std::isfinite(value)) out << printed(" fill-opacity=%.2f", scale.shade(value));
    out << "><title>" << escaped(layer) << ", " << columns.words(column) << ": " << text_of(value)
        << "</title></rect>\n";
  }
}

}  // namespace

bool is_of_a_layer(const Series& series) {
  return series.name.find('/') != std::string::npos;
}

std::vector<HeatMap> heat_maps_of(const RunFiles& run) {
  std::vector<HeatMap> maps;
  for (const auto& series : run.series) {
    if (!is_of_a_layer(series)) continue;
    const auto kind = series.name.substr(0, series.name.find('/'));
    auto found = std::ranges::find(maps, kind, &HeatMap::kind);
    if (found == maps.end()) found = maps.insert(found, {kind, {}});
    found->of_layers.push_back(&series);
  }
  return maps;
}

std::string svg_heat_map(const HeatMap& map) {
  const auto columns = columns_of(map);
  if (columns.steps.empty()) return "";
  const auto scale = scale_of(map);
  const auto rows = std::min(most_rows, map.of_layers.size());
  std::size_t longest = 0;
  for (const auto* series : map.of_layers) longest = std::max(longest, layer_of(*series).size());
  const double left = std::min(width / 2, 12 + letter * static_cast<double>(longest));
  const Frame frame{left, (width - right - left) / static_cast<double>(columns.count())};
  const double height = top + row_height * static_cast<double>(rows) + bottom;
  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << width << ' ' << height << "\" role=img>\n";
  for (std::size_t row = 0; row < rows; ++row) {
    draw_row(*map.of_layers[row], top + row_height * static_cast<double>(row), columns, scale, frame, out);
  }
  const double below = height - bottom + 14;
  out << "<text x=" << rounded(left) << " y=" << below << ">step " << columns.steps.front()
      << "</text><text x=" << width - right << " y=" << below << " text-anchor=end>" << columns.steps.back()
      << "</text>\n<text x=" << rounded(left) << " y=" << below + 15 << '>';
  if (scale.low == scale.high) {
    out << text_of(scale.low) << " everywhere";
  } else if (scale.low < scale.high) {
    out << "from " << text_of(scale.low) << " (light) to " << text_of(scale.high) << " (dark)"
        << (scale.is_logarithmic() ? ", logarithmic" : "");
  }
  if (rows < map.of_layers.size()) out << "; " << map.of_layers.size() - rows << " more layers are not drawn";
  out << "</text>\n</svg>\n";
  return out.str();
}

}  // namespace vernier
