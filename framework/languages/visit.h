// The settings of the process during a call from another language. They are those of a training until the call ends,
// and then again those of the program.
#pragma once

#include <vernier/state.h>

#include <cfenv>
#include <clocale>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/given.h"

namespace vernier {

// The program's objects of one trainer.
struct Guest {
  Tensors arrays;
  std::optional<LaunchPlace> place;
  int threads = 0;  // the number for OpenMP within the calls; 0: none yet
};

// The process has one at a time: a second thread that calls is refused.
class Visit {
 public:
  explicit Visit(Guest& guest);
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit();

 private:
  std::unique_lock<std::mutex> lock_;
  Guest& guest_;
  Given given_;
  std::fenv_t floats_;
  bool has_own_mode_;  // the program traps errors of floating-point numbers, rounds otherwise, or has no denormals
  int threads_;
  ::locale_t locale_;
};

}  // namespace vernier
