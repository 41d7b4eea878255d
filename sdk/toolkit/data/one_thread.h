// Has LibTorch's operators use one thread on the calling thread. A loader's workers are threads already; and sums over
// many elements have other bits with another number of threads.
#pragma once

#include <ATen/Parallel.h>

// From LibTorch's OpenMP library. Weak: without them LibTorch uses its own pool, which one thread cannot leave.
extern "C" __attribute__((weak)) void omp_set_num_threads(int threads);
extern "C" __attribute__((weak)) int omp_get_max_threads();

namespace vernier {

class OneThread {
 public:
  OneThread() {
    at::get_num_threads();  // LibTorch sets the number at its first use on a thread
    if (omp_set_num_threads == nullptr) return;
    before_ = omp_get_max_threads();
    omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 0) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;
};

}  // namespace vernier
