// For the host: the plugin that it calls, as it is watched, and a copy of the log. Main thread only.
#pragma once

#include <vernier/event.h>
#include <vernier/plugin.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace vernier {

// The plugin whose listener the bus calls now; null outside of listeners. A signal handler may ask too.
VERNIER_API const Plugin* listening_now();
// The event that it is called for; of no meaning outside of listeners.
VERNIER_API Event listening_event();
// The step that an event is of: `run.step` counts those finished, and some events come after theirs is.
VERNIER_API std::int64_t step_of(Event event, const Run& run);

// How long the listeners of each plugin took.
struct ListenerTimes {
  std::vector<std::pair<const Plugin*, double>> seconds;  // without those of other plugins' calls in theirs
  double inner = 0;                                       // seconds of such calls so far
};
// From now on the bus adds to these; null: it reads no clock.
VERNIER_API void time_listeners(ListenerTimes* times);

// Returns what name_listeners() of event.h was last given.
VERNIER_API bool are_listeners_named();

// While it lives, the time is not that of the listener which is called now: the trainer computes for it.
class VERNIER_API NotOfListener {
 public:
  NotOfListener();
  NotOfListener(const NotOfListener&) = delete;
  NotOfListener& operator=(const NotOfListener&) = delete;
  ~NotOfListener();

 private:
  ListenerTimes* times_;  // null: nothing is timed
  double inner_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

// Receives each log line after the sink of set_log_sink(): for the log file of a run in a program that has a sink of
// its own. null: nobody. Any thread.
VERNIER_API void copy_log_to(LogSink copy);

// After a call of a plugin within a step: throws Error if it left the gradient mode off, and puts it on.
VERNIER_API void refuse_no_gradients();

}  // namespace vernier
