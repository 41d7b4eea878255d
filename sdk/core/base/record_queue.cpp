#include <vernier/record_queue.h>

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <utility>

namespace vernier {

namespace {

constexpr std::chrono::milliseconds longest_rest{100};

// Signals are for the training thread.
std::jthread without_signals(std::function<void(const std::stop_token&)> body) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::jthread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

// All memory at once, so the training thread allocates none: a megabyte for both of a queue.
std::vector<Record> empty_records() {
  constexpr std::size_t entries = 24;  // entries of a usual record
  std::vector<Record> records(RecordQueue::capacity);
  for (auto& record : records) record.entries.reserve(entries);
  return records;
}

}  // namespace

RecordQueue::RecordQueue(std::function<void(const Record&)> write, std::function<void()> flush)
    : write_(std::move(write)),
      flush_(std::move(flush)),
      filling_(empty_records()),
      thread_(without_signals([this](const std::stop_token& stop) { work(stop); })) {}

void RecordQueue::drain() {
  std::unique_lock lock(mutex_);
  is_wanted_ = true;
  wake_.notify_all();
  idle_.wait(lock, [this] { return !is_wanted_ && !is_writing_; });
}

std::int64_t RecordQueue::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void RecordQueue::work(const std::stop_token& stop) {
  auto taken = empty_records();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, stop, longest_rest, [this] { return is_wanted_ || count_ >= capacity / 2; });
    const bool is_last = stop.stop_requested(), is_wanted = is_wanted_;
    const std::size_t count = std::exchange(count_, 0);
    std::swap(filling_, taken);
    is_writing_ = true;
    if (!failure_ && (count > 0 || is_wanted)) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        for (std::size_t i = 0; i < count; ++i) {
          taken[i].resolve();
          write_(taken[i]);
        }
        flush_();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
    }
    is_writing_ = false;
    if (is_wanted) is_wanted_ = false;
    idle_.notify_all();
    if (is_last && count_ == 0) return;
  }
}

}  // namespace vernier
