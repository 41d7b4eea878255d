#include "plugin_times.h"

#include <vernier/plugin.h>

#include <algorithm>

namespace vernier {

namespace {

// One step in `period` is timed, from step `first` on, because the first steps are slow for other reasons. A prime
// meets what a plugin does in every second or hundredth step neither always nor never.
constexpr std::int64_t period = 17, first = 8;
constexpr std::int64_t fewest_steps = 4;
constexpr double slow_share = 0.1, slow_seconds = 1e-3;

}  // namespace

void PluginTimes::begin_step(std::int64_t step) {
  is_timed_ = step % period == first;
  if (!is_timed_) return;
  times_.seconds.clear();
  time_listeners(&times_);
  begin_ = std::chrono::steady_clock::now();
}

void PluginTimes::end_step() {
  if (!is_timed_) return;
  time_listeners(nullptr);
  const double step = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  seconds_ += step;
  steps_ += 1;
  for (const auto& [plugin, seconds] : times_.seconds) {
    auto& total = totals_[plugin->id()];
    total.seconds += seconds;
    if (seconds > std::max(slow_share * step, slow_seconds)) total.slow_steps += 1;
  }
}

std::map<std::string, double> PluginTimes::slow() const {
  std::map<std::string, double> shares;
  if (steps_ < fewest_steps) return shares;
  for (const auto& [id, total] : totals_) {
    const double share = total.seconds / seconds_;
    if (2 * total.slow_steps >= steps_ && share > slow_share) shares[id] = share;
  }
  return shares;
}

}  // namespace vernier
