// The last words of a process that a plugin ends: by a signal, or by exit() while the run goes on.
#pragma once

#include <vernier/run.h>

#include <functional>
#include <string>

namespace vernier {

class Plugin;

// From now on, the signals of a crash and of timers write one line to stderr that names plugin, event and step, and
// then do what they did before: by default, they end the process. Call it once, on the main thread.
void name_crashes();

// Writes such a line about a second Ctrl-C, in its signal handler.
void report_interrupt();

// The line goes into this file too. Main thread only.
void name_crashes_in(const std::string& log);

// The plugin that is called now, for these lines. Main thread only; the one made last counts.
class CallsWatched {
 public:
  // called: who was called last outside of the bus, or null. step: the one under way, or 0. They must outlive this.
  CallsWatched(const Plugin* const& called, const Run& run, const std::int64_t& step);
  CallsWatched(CallsWatched&&) = delete;
  ~CallsWatched();

  struct Calls {
    const Plugin* const* called;
    const Run* run;
    const std::int64_t* step;
  };

 private:
  Calls calls_;
  const Calls* before_;
};

// While it lives, exit() writes a line that names the plugin, and ends the process with the exit status of a failed
// training. Main thread only; the one made last counts.
class ExitRefused {
 public:
  // at_exit: called with the line, if the main thread called exit(); for the summary.
  explicit ExitRefused(std::function<void(const std::string& why)> at_exit = {});
  ExitRefused(ExitRefused&&) = delete;
  ~ExitRefused();

 private:
  static void refuse();

  std::function<void(const std::string&)> at_exit_;
  const ExitRefused* before_;
};

}  // namespace vernier
