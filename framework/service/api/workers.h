// Threads for answers that take longer than the server's thread may: they read files of runs, and ask runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "service/http/http_service.h"

namespace serve {

class Workers {
 public:
  Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() { stop(); }
  // Finishes what is in work, and wakes the server no more.
  void stop();

  // Any thread. Calls `wake`, which is HttpServer::wake, now for earlier answers, and then after each answer.
  void on_answer(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    (wake_server_ = std::move(wake))();
  }

  // An answer that comes later: what `work` returns on one of the threads. It may throw HttpRefused. Throws HttpRefused
  // with 503 if too much waits.
  vernier::HttpResponse answer(std::function<vernier::HttpResponse()> work);

 private:
  void run(const std::stop_token& stop);
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::packaged_task<vernier::HttpResponse()>> waiting_;
  std::function<void()> wake_server_ = [] {};  // guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace serve
