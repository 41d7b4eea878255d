// Takes records from the training thread to a thread that writes them.
#pragma once

#include <vernier/record.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vernier {

// Bounded: what is too much for the writer is dropped and counted, so the training thread never waits for a disk.
class VERNIER_API RecordQueue {
 public:
  static constexpr std::size_t capacity = 1024;  // records

  // Both are called on the writer's thread, one at a time: write for each record, flush after some of them, at the
  // latest a tenth of a second after the first. After an exception neither is called again.
  RecordQueue(std::function<void(const Record&)> write, std::function<void()> flush);
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  // Training thread. fill gets a record with any content. Rethrows what the writer threw.
  template <class Fill>
  void push(const Fill& fill) {
    bool is_half_full = false;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      if (count_ == capacity) {
        dropped_ += 1;
        return;
      }
      fill(filling_[count_]);
      count_ += 1;
      is_half_full = count_ == capacity / 2;
    }
    if (is_half_full) wake_.notify_all();  // waking a thread costs microseconds, so it looks by itself
  }
  // Training thread: waits until all records are written and flushed. Throws nothing: push() does.
  void drain();
  std::int64_t dropped() const;

 private:
  void work(const std::stop_token& stop);

  std::function<void(const Record&)> write_;
  std::function<void()> flush_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_, idle_;
  std::vector<Record> filling_;  // `capacity` of them; the first count_ wait
  std::size_t count_ = 0;
  std::int64_t dropped_ = 0;
  bool is_writing_ = false, is_wanted_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;  // writes what is left when it ends
};

}  // namespace vernier
