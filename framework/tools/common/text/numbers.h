// Numbers as text for the command line.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace vernier {

// One number in a format of printf: print_number("%.4g", 0.5). A NaN has no sign.
inline std::string print_number(const char* format, double value) {
  if (std::isnan(value)) return "nan";
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace vernier
