// How much of what can go wrong a case tries: all of a short run, the same each time, or of a longer one what can be
// tried in the minutes that VERNIER_CRASH_MINUTES gives to all cases together, in random order.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

// 0: the short form.
inline double minutes() {
  const char* given = std::getenv("VERNIER_CRASH_MINUTES");
  return given != nullptr ? std::strtod(given, nullptr) : 0;
}

inline bool is_long() {
  return minutes() > 0;
}

// A random order is another one each time, and told with what fails.
inline std::mt19937 random_numbers(unsigned usual) {
  const unsigned seed = is_long() ? std::random_device()() : usual;
  if (is_long()) MESSAGE("random numbers from ", seed);
  return std::mt19937(seed);
}

// What a case may still try. The short form tries all.
class Budget {
 public:
  ~Budget() { MESSAGE(tried_, " tried in ", std::round(minutes_since_begin() * 10) / 10, " minutes"); }
  bool has_more() {
    constexpr int cases = 7;
    const bool more = !is_long() || tried_ == 0 || minutes_since_begin() < minutes() / cases;
    tried_ += more ? 1 : 0;
    return more;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double minutes_since_begin() const {
    return std::chrono::duration<double, std::ratio<60>>(Clock::now() - begin_).count();
  }
  Clock::time_point begin_ = Clock::now();
  int tried_ = 0;
};

// Saves every step; the shortest that takes away what it saved first.
inline const std::string saving_run = "[run]\nsteps = " + std::string(is_long() ? "12" : "4") + R"(
device = "cpu"
threads = 1
[task]
use = "mlp"
inputs = 3
hidden = [4]
classes = 2
samples = 24
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
every = 1
keep_last = 2
[[monitor]]
use = "jsonl"
)";
