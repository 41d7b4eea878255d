// The end of a process, for mains only.
#pragma once

#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace vernier {

// Returns whether a library that was opened after the first `loaded` ones has functions to call at exit, as one that
// was compiled with --coverage. GCC gives each library one such function, for static objects.
inline bool opened_has_end(std::intptr_t loaded) {
  const auto look = [](dl_phdr_info* object, std::size_t, void* count) {
    if (--*static_cast<std::intptr_t*>(count) >= 0) return 0;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& part = object->dlpi_phdr[i];
      if (part.p_type != PT_DYNAMIC) continue;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): it is given as a number
      for (const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + part.p_vaddr);
           entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_FINI_ARRAYSZ && entry->d_un.d_val > sizeof(void*)) return 1;
      }
    }
    return 0;
  };
  return ::dl_iterate_phdr(look, &loaded) != 0;
}

// Called first in a main: at exit, the libraries that the process started with are left as they are. LibTorch would
// take back each of its operators, which takes a third as long as its start. What was registered since still runs:
// static objects of functions and of plugins are destroyed.
inline void leave_libraries_at_exit() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report at the end
  if (std::getenv("LD_PRELOAD") != nullptr) return;                  // so may a profiler
  static std::intptr_t loaded = 0;
  (void)::dl_iterate_phdr([](dl_phdr_info*, std::size_t, void*) { return ++loaded, 0; }, nullptr);
  (void)::on_exit(
      [](int status, void*) {
        if (opened_has_end(loaded)) return;
        std::cout.flush();
        (void)std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
#endif
}

}  // namespace vernier
