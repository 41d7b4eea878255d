// Runs rivals in turn, many short rounds, so that a noisy machine disturbs all of them alike, and prints their medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

struct Rival {
  std::string name;
  std::function<void()> body;
  std::function<void(int)> several = {};  // so many steps at once, where asking for each takes time
  std::vector<double> seconds = {};

  static double median_of(std::vector<double> numbers) {
    const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
    std::nth_element(numbers.begin(), middle, numbers.end());
    return *middle;
  }
  double median() const { return median_of(seconds); }
  double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
  // To another of the same rounds: the median of the ratios within a round.
  double ratio(const Rival& other) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / other.seconds[i]);
    return median_of(std::move(ratios));
  }
};

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// The processor time of this thread, which other programs disturb less.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The first rival is the one that the others are measured by. Returns them with their times.
inline std::vector<Rival> compare(const char* title, std::vector<Rival> rivals, int rounds, int steps_a_round,
                                  double (*seconds_now)() = wall_seconds) {
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (auto& rival : rivals) {
      const double start = seconds_now();
      if (rival.several) rival.several(steps_a_round);
      for (int i = 0; i < steps_a_round && !rival.several; ++i) rival.body();
      const double seconds = (seconds_now() - start) / steps_a_round;
      if (round >= 0) rival.seconds.push_back(seconds);
    }
  }
  std::printf("%s (microseconds: median and least of %d rounds of %d)\n", title, rounds, steps_a_round);
  const double median = rivals.front().median(), least = rivals.front().least();
  for (auto& rival : rivals) {
    std::printf("  %-44s %10.2f %10.2f   x%.3f   %+.2f\n", rival.name.c_str(), rival.median() * 1e6,
                rival.least() * 1e6, rival.median() / median, (rival.least() - least) * 1e6);
  }
  return rivals;
}
