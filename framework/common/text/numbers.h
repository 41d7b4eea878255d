// Numbers as text for the command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>

namespace vernier {

// Up to 63 characters in a format of printf.
template <class... Values>
std::string printed(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// One number in a format of printf: print_number("%.4g", 0.5). A NaN has no sign.
inline std::string print_number(const char* format, double value) {
  return std::isnan(value) ? "nan" : printed(format, value);
}

// The shortest text that reads back as this number and no other: "0.1", "inf". A NaN has no sign.
inline std::string shortest_number(double value) {
  char text[32];
  return std::isnan(value) ? "nan" : std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// The smallest and the largest of the finite numbers that it was given; low > high before the first.
struct Extent {
  double low = HUGE_VAL, high = -HUGE_VAL;
  void include(double number) {
    if (!std::isfinite(number)) return;
    low = std::min(low, number);
    high = std::max(high, number);
  }
};

}  // namespace vernier
