// Sums over ranks of one machine, through memory that they share: faster than any connection between them.
#pragma once

#include <vernier/launch_place.h>
#include <vernier/tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "shared_memory.h"

namespace ddp {

// Main thread only. A thread of its own computes.
class SharedSums {
 public:
  // Rank 0 makes the memory. The others open it by the name that it has on rank 0. Throws vernier::Error where that is
  // not possible, as on another machine.
  SharedSums(const vernier::LaunchPlace& place, const std::string& name, std::chrono::milliseconds timeout);
  ~SharedSums();
  SharedSums(const SharedSums&) = delete;
  SharedSums& operator=(const SharedSums&) = delete;

  const std::string& name() const { return memory_.name(); }
  // Sums contiguous tensors over all ranks, in place, after those of earlier calls. An element is the sum in the order
  // of the ranks, so its bits do not depend on where it is in a tensor. is_read: false if this rank needs no sums; its
  // tensors stay as they are. The future throws vernier::Error after the timeout, and so do all later ones.
  std::future<void> sum(std::vector<torch::Tensor> tensors, bool is_read);
  // Likewise, replaces the bytes of a contiguous tensor by those that rank `from` has.
  std::future<void> copy(torch::Tensor tensor, std::int64_t from);

 private:
  struct Board;
  std::future<void> later(std::function<void()> body);
  // These run on the thread of this object:
  void work();
  void sum(const torch::Tensor& tensor, bool is_read);
  void copy_from(std::int64_t from, const torch::Tensor& tensor);
  void wait(std::atomic<std::uint32_t>& count, std::uint32_t least) const;
  std::byte* slot(std::int64_t rank, std::uint32_t chunk) const;

  const std::int64_t rank_, ranks_;
  const std::chrono::milliseconds timeout_;
  SharedMemory memory_;
  Board* board_;
  std::uint32_t chunks_ = 0;  // chunks that this rank has put in; the number wraps around
  bool has_failed_ = false;   // chunks_ no longer agrees with the other ranks
  std::atomic<bool> is_ending_ = false;
  std::mutex mutex_;  // guards the queue
  std::condition_variable came_;
  std::deque<std::packaged_task<void()>> queue_;
  std::thread thread_;
};

}  // namespace ddp
