// Runs chunks of work on LibTorch's threads. at::parallel_for needs callers compiled with -fopenmp, and divides the
// work in advance. Here each free thread takes the next chunk.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

// From LibTorch's OpenMP library. The symbol is weak: without it, one thread does the work.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
// Weak too: without it, OneThread does nothing.
extern "C" __attribute__((weak)) void omp_set_num_threads(int threads);

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

// Calls body(tensor, start) for each run of `chunk` elements of each tensor, the last of which may be shorter.
// Otherwise as for_each_chunk. elements(i): those of tensor i.
template <class Elements, class Body>
void for_each_chunk_of(std::size_t tensors, std::int64_t chunk, const Elements& elements, const Body& body) {
  struct Chunk {
    std::uint32_t tensor;
    std::int64_t start;
  };
  std::vector<Chunk> chunks;
  for (std::uint32_t i = 0; i < tensors; ++i) {
    for (std::int64_t start = 0; start < elements(i); start += chunk) chunks.push_back({i, start});
  }
  for_each_chunk(chunks.size(), /*chunks_a_thread=*/2,
                 [&](std::size_t i) { body(std::size_t{chunks[i].tensor}, chunks[i].start); });
}

// LibTorch's CPU kernels wake all threads for a few elements, which takes longer than the work. A loader's workers are
// threads already; and sums over many elements have other bits with another number of threads. Unlike
// at::set_num_threads(), OpenMP's own setting holds for this thread only and costs nothing.
class OneThread {
 public:
  explicit OneThread(bool wanted) : before_(wanted && omp_set_num_threads != nullptr ? at::get_num_threads() : 1) {
    if (before_ > 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace vernier
