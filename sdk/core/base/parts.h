// Work that is divided into parts, on several threads. at::parallel_for would be a plain loop, because core is
// compiled without -fopenmp.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <vector>

namespace vernier {

// Calls body(i) for each i below count, in any order, on at most `most` threads, by default LibTorch's number. Rethrows
// the exception of the lowest i, whatever the order; then some of the higher ones are left out.
template <class Body>
void for_each_part(std::size_t count, const Body& body,
                   std::size_t most = static_cast<std::size_t>(at::get_num_threads())) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::exception_ptr> trouble(count);
  const auto work = [&] {
    for (auto i = next++; i < count && !failed; i = next++) {
      try {
        body(i);
      } catch (...) {
        trouble[i] = std::current_exception();
        failed = true;  // parts are taken in order, so all lower ones have begun and are finished
      }
    }
  };
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < std::min(most, count); ++i) others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();
  for (const auto& each : trouble) {
    if (each) std::rethrow_exception(each);
  }
}

}  // namespace vernier
