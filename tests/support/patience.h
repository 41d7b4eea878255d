// Time limits that follow the load of the machine, so that a test fails for a hang alone.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace patience {

// Waits until the condition holds. Returns false after two minutes, which no machine needs for what tests wait for.
template <class Condition>
bool wait_until(const Condition& condition, std::chrono::milliseconds poll_interval = std::chrono::milliseconds(5)) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(poll_interval);
  }
  return true;
}

// Returns how many times as long work takes as on a machine that does nothing else: the largest ratio of time to
// processor time so far, at least 1. Each call measures it over 50 ms of processor time.
inline double slowness() {
  static double largest = 1;
  const auto processor_seconds = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const auto begin = std::chrono::steady_clock::now();
  const double processor_begin = processor_seconds();
  double processor = 0;
  while (processor < 0.05) processor = processor_seconds() - processor_begin;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return largest = std::max(largest, passed.count() / processor);
}

// Returns a limit in seconds for what takes at most `seconds` on a machine that does nothing else.
inline double limit(double seconds) {
  return seconds * slowness();
}

}  // namespace patience
