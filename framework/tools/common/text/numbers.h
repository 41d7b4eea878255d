// Numbers as text for the command line.
#pragma once

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

}  // namespace vernier
