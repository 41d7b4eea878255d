// A call from a program in another language: it finds the process as a training needs it, and leaves it as it was.
#pragma once

#include <vernier/state.h>

#include <cfenv>
#include <clocale>
#include <cstdint>
#include <optional>

#include "base/given.h"

namespace vernier {

// The program's objects of one trainer.
struct Guest {
  Tensors arrays;
  std::optional<LaunchPlace> place;
  int threads = 0;  // the number for OpenMP within the calls; 0: none yet
};

class Visit {
 public:
  explicit Visit(Guest& guest);
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit();

 private:
  Guest& guest_;
  Given given_;
  std::fenv_t floats_;
  bool has_own_mode_;  // the program traps errors of floating-point numbers, rounds otherwise, or has no denormals
  int threads_;
  ::locale_t locale_;
};

}  // namespace vernier
