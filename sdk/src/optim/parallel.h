// Runs chunks of work on LibTorch's threads. at::parallel_for needs callers compiled with -fopenmp, and divides the
// work in advance. Here each free thread takes the next chunk.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

// From LibTorch's OpenMP library. The symbol is weak: without it, one thread does the work.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

namespace vernier {

// Calls body(i) for each i below count, in any order. body must not throw. Uses at most count / chunks_a_thread
// threads.
template <class Body>
void for_each_chunk(std::size_t count, std::size_t chunks_a_thread, const Body& body) {
  struct Work {
    std::size_t count;
    const Body& body;
    std::atomic<std::size_t> next = 0;
  } work{count, body};
  const auto run = [](void* data) {
    auto& mine = *static_cast<Work*>(data);
    for (auto i = mine.next++; i < mine.count; i = mine.next++) mine.body(i);
  };
  const auto threads = std::min<std::size_t>(static_cast<std::size_t>(at::get_num_threads()), count / chunks_a_thread);
  if (threads > 1 && GOMP_parallel != nullptr) {
    GOMP_parallel(run, &work, static_cast<unsigned>(threads), 0);
  } else {
    run(&work);
  }
}

}  // namespace vernier
