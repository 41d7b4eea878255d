// Work in chunks on LibTorch's threads. at::parallel_for uses them only where the caller is compiled with -fopenmp, and
// deals out equal parts in advance; here whoever is free takes the next chunk.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

// Of the OpenMP that LibTorch brings. Weak: without it one thread does the work.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

namespace vernier {

// body(i) for each i below count, in no order, which must not throw. A thread for each chunks_a_thread at most.
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
