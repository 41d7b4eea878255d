// The end of a process, for mains only.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace vernier {

// Called first in a main: at exit, the libraries that the process started with are left as they are. LibTorch would
// take back each of its operators, which takes a third as long as its start. What was registered since still runs:
// static objects of functions and of plugins are destroyed.
inline void leave_libraries_at_exit() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report at the end
  if (std::getenv("LD_PRELOAD") != nullptr) return;                  // so may a profiler
  (void)::on_exit(
      [](int status, void*) {
        std::cout.flush();
        (void)std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
#endif
}

}  // namespace vernier
