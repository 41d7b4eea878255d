// One thread for a product of matrices: MKL does not look at OpenMP's setting.
#pragma once

#include "base/parallel.h"

// MKL's own setting of this thread; returns the one before. Weak: LibTorch may have been built without MKL.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);

namespace vernier {

class OneThreadOfMkl {
 public:
  OneThreadOfMkl() : before_(MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OneThreadOfMkl() {
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
  }
  OneThreadOfMkl(const OneThreadOfMkl&) = delete;
  OneThreadOfMkl& operator=(const OneThreadOfMkl&) = delete;

 private:
  OneThread openmp_{true};
  int before_;
};

}  // namespace vernier
