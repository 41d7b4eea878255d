// Numbers as text for the command line.
#pragma once

#include <cstdio>
#include <string>

namespace vernier {

// One number in a format of printf: print_number("%.4g", 0.5).
inline std::string print_number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace vernier
