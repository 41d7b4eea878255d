// Runs tasks on LibTorch's threads, each thread with memory of its own.
#pragma once

#include <ATen/ops/empty.h>

#include <atomic>
#include <cstdint>
#include <exception>

#include "base/parallel.h"

namespace vernier {

// Calls body(task, memory) for each task below `tasks`, in any order. memory: `bytes` bytes, which a thread keeps from
// one task to the next, on a border of 64. Each thread ends with done(). Throws what the first body that failed has
// thrown.
template <class Body, class Done>
void in_tasks(std::int64_t tasks, std::int64_t bytes, const Body& body, const Done& done) {
  const auto workers = std::min<std::int64_t>(at::get_num_threads(), tasks);
  const auto step = (bytes + 63) / 64 * 64;
  const auto memory = at::empty({workers * step + 64}, at::kByte);
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.mutable_data_ptr()) + 63) / 64 * 64;
  std::atomic<std::int64_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::exception_ptr failure;  // for_each_chunk's body may not throw
  for_each_chunk(static_cast<std::size_t>(workers), /*chunks_a_thread=*/1, [&](std::size_t worker) {
    try {
      const auto mine = begin + worker * static_cast<std::uintptr_t>(step);
      for (auto task = next++; task < tasks; task = next++) body(task, mine);
      done();
    } catch (...) {
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}
template <class Body>
void in_tasks(std::int64_t tasks, std::int64_t bytes, const Body& body) {
  in_tasks(tasks, bytes, body, [] {});
}

}  // namespace vernier
