// The view of a run that the service shows: its state, the newest numbers, their history, notices, and events for
// streams.
#pragma once

#include <vernier/record.h>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "service/http/event_ring.h"
#include "service/http/history.h"

namespace control {

// Any thread.
class View {
 public:
  static constexpr std::size_t most_notices = 500, most_histories = 256;
  static constexpr double step_events_apart = 0.05;  // seconds: not each step of a fast run is an event

  explicit View(const vernier::Run& run);

  // Writer's thread.
  void take(const vernier::Record& record);
  // Training thread, after each step. state: "running", "paused", "ended", "failed".
  void set_state(const std::string& state, const vernier::Run& run, double factor);
  void add_event(const char* type, const vernier::Json& data) { events_.add(type, data); }

  vernier::Json run() const;
  vernier::Json metrics() const;
  // Null for a metric that has no history.
  vernier::Json history(const std::string& metric, std::int64_t limit) const;
  vernier::Json notices(std::int64_t after, std::int64_t limit) const;
  const vernier::EventRing& events() const { return events_; }
  static vernier::Json memory(torch::Device device);

 private:
  struct Notice {
    std::int64_t id, step;
    std::string name, text;
  };
  vernier::Json run_locked() const;
  vernier::Json status_locked(vernier::Json status) const;

  mutable std::mutex mutex_;
  vernier::Json about_;  // facts that do not change
  std::string status_file_, state_ = "running";
  torch::Device device_;
  std::optional<double> scale_;
  std::optional<std::int64_t> tracker_;
  std::int64_t step_ = 0;
  double factor_ = 1, time_ = 0;
  double step_event_at_ = 0;  // when the last one was made
  struct Newest {
    std::int64_t step;
    double value;
    const vernier::MetricInfo* metric;  // owned by the Collector
  };
  std::map<std::string, Newest> newest_;
  std::map<std::string, vernier::History> histories_;
  std::deque<Notice> notices_;
  std::int64_t notice_id_ = 0;
  vernier::EventRing events_;
};

}  // namespace control
