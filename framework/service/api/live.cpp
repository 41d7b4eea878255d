#include "service/api/live.h"

#include <iostream>

namespace serve {

using vernier::Json;

Json json_of(const Job& job) {
  const auto when = [](const std::string& time) { return time.empty() ? Json(nullptr) : Json(time); };
  const auto& request = job.request;
  return {{"id", job.id},
          {"name", request.name},
          {"user", request.user},
          {"state", name_of(job.state)},
          {"is_ending", job.is_cancelled && !job.is_over()},
          {"attempt", job.attempt},
          {"priority", request.priority},
          {"cores", request.cores},
          {"gpus", request.gpus},
          {"time_limit", request.time_limit},
          {"memory_limit", request.memory_limit},
          {"retries", request.retries},
          {"slurm", job.slurm},
          {"created", when(job.created)},
          {"started", when(job.started)},
          {"ended", when(job.ended)},
          {"error", job.error}};
}

Live::Live(Queue& queue, MetricHistories& histories) : queue_(queue), histories_(histories) {
  queue.on_change([this](const Job& job, bool is_there) {
    is_there ? events_.add("job", json_of(job)) : events_.add("removed", {{"id", job.id}});
    const std::lock_guard lock(mutex_);
    if (wake_server_) wake_server_();
  });
}

void Live::begin(std::function<void()> wake_server) {
  {
    const std::lock_guard lock(mutex_);
    wake_server_ = std::move(wake_server);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Live::stop() {
  {
    const std::lock_guard lock(mutex_);
    wake_server_ = nullptr;
  }
  thread_ = {};
}

void Live::run(const std::stop_token& stop) {
  constexpr auto look_every = std::chrono::milliseconds(250);
  const auto is_over = [&] { return stop.stop_requested(); };
  for (std::unique_lock lock(mutex_); !wake_.wait_for(lock, stop, look_every, is_over);) {
    lock.unlock();
    bool is_news = false;
    try {
      is_news = events_.has_streams() && look();
    } catch (const std::exception& error) {  // a file that cannot be read; it is looked at again
      std::cerr << "vernier: " << error.what() << std::endl;
    }
    lock.lock();
    if (is_news && wake_server_) wake_server_();
  }
}

bool Live::look() {
  auto jobs = queue_.running();
  if (jobs.size() > most_followed) jobs.erase(jobs.begin(), jobs.end() - most_followed);
  std::map<std::int64_t, Seen> seen;
  bool is_news = false;
  for (const auto& job : jobs) {
    auto& of_job = seen[job.id] = seen_[job.id];
    if (of_job.attempt != job.attempt) of_job = {.attempt = job.attempt};
    is_news = look_at(job, of_job) || is_news;
  }
  seen_ = std::move(seen);
  return is_news;
}

bool Live::look_at(const Job& job, Seen& seen) {
  bool is_news = false;
  std::error_code none;
  const auto bytes = std::filesystem::file_size(queue_.folder_of(job.id) / "log", none);
  if (!none && bytes != seen.bytes) {
    seen.bytes = bytes;
    events_.add("log", {{"job", job.id}, {"bytes", bytes}});
    is_news = true;
  }
  const auto run = queue_.run_of(job.id);
  if (run.empty()) return is_news;
  const auto step = histories_.newest_step(run, job.attempt, seen.step);
  if (step.is_null()) return is_news;
  seen.step = step["step"].get<std::int64_t>();
  Json event = {{"job", job.id}};
  event.update(step);
  events_.add("step", event);
  return true;
}

}  // namespace serve
