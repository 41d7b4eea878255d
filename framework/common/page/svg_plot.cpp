#include "svg.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "common/text/numbers.h"

namespace vernier {

namespace {

constexpr double width = 640, height = 260, left = 62, right = 10, top = 10, bottom = 34;
constexpr int columns = 500;  // points of a curve are joined to so many

struct Axis : Extent {
  double from = 0, to = 0;  // on the page
  double place(double value) const { return from + (value - low) / (high - low) * (to - from); }
  // Round numbers, 1, 2 or 5 times a power of ten apart.
  std::vector<double> ticks() const {
    constexpr int most = 12;
    const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    const double first = std::ceil(low / step);
    std::vector<double> found;
    for (int i = 0; i < most && (first + i) * step <= high + step / 1e6; ++i) found.push_back((first + i) * step);
    return found;
  }
  // Makes room around values that are equal but for rounding, and keeps high - low finite.
  void widen() {
    constexpr double most = std::numeric_limits<double>::max() / 4, rounding = 1e-12;
    low = std::clamp(low, -most, most), high = std::clamp(high, -most, most);
    if (high - low > rounding * std::max(std::abs(low), std::abs(high))) return;
    const double by = low == 0 ? 1 : std::abs(low) / 10;
    low -= by;
    high += by;
  }
};

std::string at(double x, double y) {
  return printed("%.1f,%.1f ", x, y);
}

void draw_axes(const Axis& x, const Axis& y, const std::string& axis, double unit, std::ostream& out) {
  for (const double tick : y.ticks()) {
    const double place = y.place(tick);
    out << "<line class=grid x1=" << left << " x2=" << width - right << " y1=" << place << " y2=" << place
        << " /><text x=" << left - 6 << " y=" << place + 4 << " text-anchor=end>" << print_number("%.4g", tick)
        << "</text>\n";
  }
  for (const double tick : x.ticks()) {
    const double place = x.place(tick);
    const bool is_at_edge = place > width - right - 20;  // half of "100000" would be outside
    out << "<text x=" << place << " y=" << height - bottom + 16 << " text-anchor=" << (is_at_edge ? "end" : "middle")
        << '>' << print_number("%.4g", tick * unit) << "</text>\n";
  }
  out << "<text x=" << (left + width - right) / 2 << " y=" << height - 4 << " text-anchor=middle>" << escaped(axis)
      << "</text>\n";
}

// The finite stretches of a curve, each thinned to the lowest and the highest value of a column.
std::vector<std::vector<Point>> stretches(const Series& series, const Axis& x) {
  std::vector<std::vector<Point>> all(1);
  int column = -1;
  for (const auto& point : series.points) {
    auto& now = all.back();
    if (!std::isfinite(point.value)) {
      if (!now.empty()) all.emplace_back();
      column = -1;
      continue;
    }
    const double share = (static_cast<double>(point.step) - x.low) / (x.high - x.low);
    const int here = static_cast<int>(share * columns);
    const bool joins = here == column && now.size() > 1;
    column = here;
    if (!joins) {
      now.push_back(point);
      continue;
    }
    auto &last = now.back(), &before = now[now.size() - 2];
    if (point.value > std::max(last.value, before.value) || point.value < std::min(last.value, before.value)) {
      before = last;
      last = point;
    }
  }
  return all;
}

// Returns the range of nearly all values: a few that lie three times their spread beyond them are left out, but for
// those with which a curve begins.
Extent without_spikes(const std::vector<SvgCurve>& curves, std::vector<double> values) {
  constexpr std::size_t fewest = 20, one_in = 50;
  constexpr double far = 3, room = 0.5;
  std::ranges::sort(values);
  Extent all;
  all.include(values.front());
  all.include(values.back());
  if (values.size() < fewest) return all;
  const double low = values[values.size() / one_in], high = values[values.size() - 1 - values.size() / one_in];
  const double spread = high - low;
  if (spread <= 0) return all;
  if (all.high > high + far * spread) all.high = high + room * spread;
  if (all.low < low - far * spread) all.low = low - room * spread;
  const auto common = all;
  for (const auto& curve : curves) {
    for (const auto& point : curve.series->points) {
      if (point.value >= common.low && point.value <= common.high) break;
      all.include(point.value);
    }
  }
  return all;
}

// Marks the furthest value of each stretch of points that are cut off.
void mark_spikes(const SvgCurve& curve, const std::vector<Point>& stretch, const Axis& x, const Axis& y,
                 std::ostream& out) {
  const auto beyond = [&](const Point& point) { return std::max(point.value - y.high, y.low - point.value); };
  for (auto point = stretch.begin(); point != stretch.end();) {
    if (beyond(*point) <= 0) {
      ++point;
      continue;
    }
    const auto end = std::find_if(point, stretch.end(), [&](const Point& each) { return beyond(each) <= 0; });
    const auto furthest =
        std::max_element(point, end, [&](const Point& a, const Point& b) { return beyond(a) < beyond(b); });
    const bool is_high = furthest->value > y.high;
    out << "<path class=c" << curve.colour % 8 << "n d=\"M"
        << at(x.place(static_cast<double>(furthest->step)), is_high ? y.to : y.from)
        << (is_high ? "l-4,7 8,0z" : "l-4,-7 8,0z") << "\"><title>"
        << escaped(curve.label + ", step " + std::to_string(furthest->step) + ": " +
                   print_number("%.6g", furthest->value) + ", cut off")
        << "</title></path>\n";
    point = end;
  }
}

void draw_curve(const SvgCurve& curve, const Axis& x, const Axis& y, std::ostream& out) {
  const auto colour = "c" + std::to_string(curve.colour % 8);
  for (auto& stretch : stretches(*curve.series, x)) {
    if (stretch.empty()) continue;
    mark_spikes(curve, stretch, x, y, out);
    for (auto& point : stretch) point.value = std::clamp(point.value, y.low, y.high);
    if (stretch.size() == 1) {
      out << "<circle class=" << colour << " r=3 cx=" << x.place(static_cast<double>(stretch[0].step))
          << " cy=" << y.place(stretch[0].value) << " />\n";
      continue;
    }
    out << "<polyline class=" << (curve.is_dashed ? "\"dashed " + colour + "\"" : colour) << " points=\"";
    for (const auto& [step, value] : stretch) out << at(x.place(static_cast<double>(step)), y.place(value));
    out << "\" />\n";
  }
  if (curve.notices == nullptr) return;
  for (const auto& notice : *curve.notices) {
    const double place = x.place(static_cast<double>(notice.step));
    if (place < left || place > width - right) continue;
    out << "<path class=" << colour << "n d=\"M" << at(place, height - bottom) << "l-4,7 8,0z\"><title>"
        << escaped(curve.label + ", step " + std::to_string(notice.step) + ": " + notice.name + " " + notice.details)
        << "</title></path>\n";
  }
}

}  // namespace

std::string escaped(const std::string& text) {
  static const std::map<char, std::string> marks = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
  std::string result;
  for (const char c : text) result += marks.contains(c) ? marks.at(c) : std::string(1, c);
  return result;
}

std::string svg_plot(const std::vector<SvgCurve>& curves, const std::string& axis, double unit) {
  Axis x{{}, left, width - right};
  std::vector<double> values;
  for (const auto& curve : curves) {
    for (const auto& [step, value] : curve.series->points) {
      if (!std::isfinite(value)) continue;
      x.include(static_cast<double>(step));
      values.push_back(value);
    }
  }
  if (values.empty()) return "";
  Axis y{without_spikes(curves, std::move(values)), height - bottom, top};
  x.widen();
  y.widen();
  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << width << ' ' << height << "\" role=img>\n";
  draw_axes(x, y, axis, unit, out);
  for (const auto& curve : curves) draw_curve(curve, x, y, out);
  out << "</svg>\n";
  return out.str();
}

std::string svg_parts(const std::vector<std::pair<std::string, double>>& parts) {
  constexpr double high = 24, line = 18, each_wide = 210;
  constexpr int in_a_line = 3;
  double whole = 0;
  for (const auto& [name, size] : parts) whole += size;
  if (whole <= 0) return "";
  const auto lines = (std::ssize(parts) + in_a_line - 1) / in_a_line;
  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << width << ' ' << high + line * static_cast<double>(lines) + 6 << "\" role=img>\n";
  double begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, size] = parts[i];
    const auto words = escaped(name + ", " + print_number("%.3g", size / whole * 100) + " %");
    const double wide = size / whole * width, x = static_cast<double>(i % in_a_line) * each_wide,
                 y = high + line * static_cast<double>(i / in_a_line + 1);
    out << "<rect class=c" << i % 8 << "n x=" << begin << " width=" << wide << " height=" << high << "><title>" << words
        << "</title></rect>\n<rect class=c" << i % 8 << "n x=" << x << " y=" << y - 9
        << " width=9 height=9 /><text x=" << x + 14 << " y=" << y << '>' << words << "</text>\n";
    begin += wide;
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace vernier
