// Runs rivals in turn, many short rounds, so that a noisy machine disturbs all of them alike, and prints their medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

struct Rival {
  std::string name;
  std::function<void()> body;
  std::vector<double> seconds = {};

  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    return seconds[seconds.size() / 2];
  }
  double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
};

// The first rival is the one that the others are measured by.
inline void compare(const char* title, std::vector<Rival> rivals, int rounds, int steps_a_round) {
  using Clock = std::chrono::steady_clock;
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (auto& rival : rivals) {
      const auto start = Clock::now();
      for (int i = 0; i < steps_a_round; ++i) rival.body();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / steps_a_round;
      if (round >= 0) rival.seconds.push_back(seconds);
    }
  }
  std::printf("%s (microseconds: median and least of %d rounds of %d)\n", title, rounds, steps_a_round);
  const double median = rivals.front().median(), least = rivals.front().least();
  for (auto& rival : rivals) {
    std::printf("  %-44s %10.2f %10.2f   x%.3f   %+.2f\n", rival.name.c_str(), rival.median() * 1e6,
                rival.least() * 1e6, rival.median() / median, (rival.least() - least) * 1e6);
  }
}
