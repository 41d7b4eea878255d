// The long form of a test tries what the short form tries only in part. `./vernier test -L long` runs the long forms.
#pragma once

#include <cstdlib>

// How long the cases of a program may take together in the long form: the value of VERNIER_LONG. 0: the short form.
inline double long_minutes() {
  const char* given = std::getenv("VERNIER_LONG");
  return given != nullptr ? std::strtod(given, nullptr) : 0;
}

inline bool is_long() {
  return long_minutes() > 0;
}
