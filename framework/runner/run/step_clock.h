// Measures the time of the steps by part.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/plugin_calls.h"

namespace vernier {

class Metrics;

// At each moment one part of the step runs, so the parts add up to the step. trainer: the trainer's own work, such as
// the copies with which a step can be undone. communication: waits for other ranks, and sums with them. plugins:
// listeners of the bus.
enum class Part { trainer, data_wait, forward, backward, communication, update, plugins };

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Main thread only. A change of the part costs one reading of the clock.
class StepClock {
 public:
  // The time from now on is this part's. Returns the part until now.
  Part to(Part part) {
    const auto now = Clock::now();
    if (is_running_) times_[index(part_)] += now - since_;
    since_ = now;
    is_running_ = true;
    if (range_ || are_listeners_named()) name(part);
    return std::exchange(part_, part);
  }
  // Stops the clock: no step is charged for the time since the last to().
  void stop() {
    is_running_ = false;
    range_.reset();
  }
  Part part() const { return part_; }
  double seconds(Part part) const { return seconds(times_[index(part)]); }

  // Sets the metrics of a step that ends, and counts from 0 for the next one, to which the listeners of StepEnd belong.
  // The time from now on is theirs. On a device other than the CPU the host's times say nothing of the work: only
  // data_wait is set.
  void show(Metrics& metrics, bool is_cpu);

  // A time that belongs to no step: the next step shows a checkpoint's.
  void add_validation(double seconds) { validation_ += seconds; }
  void add_checkpoint(double seconds) {
    checkpoint_ += seconds;
    checkpoint_to_show_ += seconds;
  }

  // Seconds of the process until now by part: "data_wait", "forward", …; and "validation", "checkpoint".
  std::map<std::string, double> totals(bool is_cpu) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t parts = 7;
  static std::size_t index(Part part) { return static_cast<std::size_t>(part); }
  static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

  void name(Part part);
  bool is_shown(std::size_t part, bool is_cpu) const;

  std::array<Clock::duration, parts> times_{}, totals_{};  // totals_ has what was shown
  Clock::time_point since_;
  Part part_ = Part::trainer;
  bool is_running_ = false;
  std::optional<at::RecordFunction> range_;  // names the part to LibTorch's profiler
  double validation_ = 0, checkpoint_ = 0, checkpoint_to_show_ = 0;
};

}  // namespace vernier
