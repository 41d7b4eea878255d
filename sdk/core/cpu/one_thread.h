// One thread for a product of matrices: MKL does not look at OpenMP's setting.
#pragma once

#include <dlfcn.h>

#include "base/parallel.h"

namespace vernier {

// Sets MKL's own setting of this thread, and returns the one before. It is looked up by name, because a LibTorch
// without MKL does not have it, and linkers make a strong reference of a weak one.
inline int set_threads_of_mkl(int threads) {
  static auto* const set = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
  return set != nullptr ? set(threads) : 0;
}

class OneThreadOfMkl {
 public:
  OneThreadOfMkl() : before_(set_threads_of_mkl(1)) {}
  ~OneThreadOfMkl() { set_threads_of_mkl(before_); }
  OneThreadOfMkl(const OneThreadOfMkl&) = delete;
  OneThreadOfMkl& operator=(const OneThreadOfMkl&) = delete;

 private:
  OneThread openmp_{true};
  int before_;
};

}  // namespace vernier
