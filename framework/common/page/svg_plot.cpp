#include "svg.h"

#include <algorithm>
#include <cmath>
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
    const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    std::vector<double> found;
    for (double tick = std::ceil(low / step) * step; tick <= high + step / 1e6; tick += step) {
      found.push_back(std::abs(tick) < step / 1e6 ? 0 : tick);
    }
    return found;
  }
  void widen() {
    if (high > low) return;
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

void draw_curve(const SvgCurve& curve, const Axis& x, const Axis& y, std::ostream& out) {
  const auto colour = "c" + std::to_string(curve.colour % 8);
  for (const auto& stretch : stretches(*curve.series, x)) {
    if (stretch.empty()) continue;
    if (stretch.size() == 1) {
      out << "<circle class=" << colour << " r=3 cx=" << x.place(static_cast<double>(stretch[0].step))
          << " cy=" << y.place(stretch[0].value) << " />\n";
      continue;
    }
    out << "<polyline class=" << colour << " points=\"";
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
  Axis x{{}, left, width - right}, y{{}, height - bottom, top};
  for (const auto& curve : curves) {
    for (const auto& [step, value] : curve.series->points) {
      if (!std::isfinite(value)) continue;
      x.include(static_cast<double>(step));
      y.include(value);
    }
  }
  if (x.low > x.high) return "";
  x.widen();
  y.widen();
  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << width << ' ' << height << "\" role=img>\n";
  draw_axes(x, y, axis, unit, out);
  for (const auto& curve : curves) draw_curve(curve, x, y, out);
  out << "</svg>\n";
  return out.str();
}

}  // namespace vernier
