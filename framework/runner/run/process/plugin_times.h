// Measures the listeners of plugins in one of every few steps, to name those that slow the run down.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "core/plugin_calls.h"

namespace vernier {

// Main thread only. The host's time: on a GPU, that of a listener which waits for the device counts.
class PluginTimes {
 public:
  PluginTimes() = default;
  PluginTimes(PluginTimes&&) = delete;
  ~PluginTimes() { time_listeners(nullptr); }

  // step: of this process, from 0.
  void begin_step(std::int64_t step);
  void end_step();

  // The plugins whose listeners took more than a tenth of the steps' time, and a millisecond, in at least half of the
  // steps that were timed; with their share of all of these. Empty before four steps were.
  std::map<std::string, double> slow() const;

 private:
  struct Total {
    double seconds = 0;
    std::int64_t slow_steps = 0;
  };
  bool is_timed_ = false;
  std::chrono::steady_clock::time_point begin_;
  ListenerTimes times_;  // times of this step
  std::map<std::string, Total> totals_;
  double seconds_ = 0;  // seconds of the timed steps
  std::int64_t steps_ = 0;
};

}  // namespace vernier
