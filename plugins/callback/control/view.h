// What the service shows of a run: its state, the newest numbers, their history, notices, and events for streams.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "http/history.h"
#include "http/http_service.h"
#include "records/record.h"

namespace control {

using vernier::History;

// Any thread.
class View {
 public:
  static constexpr std::size_t most_events = 1024, most_notices = 500, most_histories = 256;
  static constexpr double step_events_apart = 0.05;  // seconds: not each step of a fast run is an event

  explicit View(const vernier::Run& run);

  // Writer's thread.
  void take(const vernier::Record& record);
  // Training thread, after each step. state: "running", "paused", "ended", "failed".
  void set_state(const std::string& state, std::int64_t step, double factor);
  void add_event(const char* type, const vernier::Json& data);

  vernier::Json run() const;
  vernier::Json metrics() const;
  // Null for a metric that has no history.
  vernier::Json history(const std::string& metric, std::int64_t limit) const;
  vernier::Json notices(std::int64_t after, std::int64_t limit) const;
  // The events after that one as a stream has them, some at a time. Sets `after` to the last one.
  std::string events(std::int64_t& after) const;
  std::int64_t last_event() const;
  static vernier::Json memory(torch::Device device);

 private:
  struct Notice {
    std::int64_t id, step;
    std::string name, text;
  };
  void add_event_locked(const char* type, const vernier::Json& data);
  vernier::Json run_locked() const;

  mutable std::mutex mutex_;
  vernier::Json about_;  // what does not change
  std::string state_ = "running";
  std::int64_t step_ = 0;
  double factor_ = 1, time_ = 0;
  double step_event_at_ = 0;  // when the last one was made
  struct Newest {
    std::int64_t step;
    double value;
  };
  std::map<std::string, Newest> newest_;
  std::map<std::string, History> histories_;
  std::deque<Notice> notices_;
  std::int64_t notice_id_ = 0;
  std::vector<std::string> events_{most_events};  // that of id n is at n % most_events
  std::int64_t event_id_ = 0;                     // of the newest
};

}  // namespace control
