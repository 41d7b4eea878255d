// Events of jobs and their runs, for pages that are open.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "service/api/metric_histories.h"
#include "service/http/event_ring.h"
#include "service/queue/queue.h"

namespace serve {

vernier::Json json_of(const Job& job);

// While somebody listens, a thread of its own looks at the files of the runs four times a second.
class Live {
 public:
  static constexpr std::size_t most_followed = 64;  // running jobs, the newest ones

  Live(Queue& queue, MetricHistories& histories);
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;
  ~Live() { stop(); }
  void stop();  // and wakes the server no more

  // Called after each event: HttpServer::wake.
  void begin(std::function<void()> wake_server);
  const vernier::EventRing& events() const { return events_; }

 private:
  struct Seen {
    std::int64_t attempt = 0, step = 0;
    std::uintmax_t bytes = 0;  // size of the log
  };
  void run(const std::stop_token& stop);
  bool look();
  bool look_at(const Job& job, Seen& seen);

  Queue& queue_;
  MetricHistories& histories_;
  vernier::EventRing events_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::function<void()> wake_server_;  // with mutex_
  std::map<std::int64_t, Seen> seen_;  // by job; the thread's
  std::jthread thread_;
};

}  // namespace serve
