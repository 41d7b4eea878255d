#include "visit.h"

#include <ATen/Parallel.h>
#include <vernier/error.h>

// From the process's OpenMP library, which may be the program's. The symbols are weak: without them there is one
// thread.
extern "C" __attribute__((weak)) int omp_get_max_threads();
extern "C" __attribute__((weak)) int omp_get_num_procs();
extern "C" __attribute__((weak)) void omp_set_num_threads(int threads);
extern "C" __attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

namespace vernier {

namespace {

bool is_default(const std::fenv_t& floats) {
#ifdef __x86_64__
  return (floats.__mxcsr & 0xFFC0U) == 0x1F80U && (floats.__control_word & 0xF3FU) == 0x33FU;
#else
  return std::fegetround() == FE_TONEAREST && ::fegetexcept() == 0;
#endif
}

// Threads of OpenMP keep the mode of the thread that made them, which may have been the program's.
void set_on_all_threads(const std::fenv_t* floats) {
  const auto set = [](void* mode) { std::fesetenv(static_cast<const std::fenv_t*>(mode)); };
  auto* mode = const_cast<std::fenv_t*>(floats);
  if (GOMP_parallel != nullptr) GOMP_parallel(set, mode, 0, 0);
  set(mode);
}

::locale_t c_locale() {
  static const ::locale_t locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

std::unique_lock<std::mutex> entered() {
  static std::mutex one;
  std::unique_lock lock(one, std::try_to_lock);
  if (!lock) refuse("another thread of this program is in a function of Vernier; wait until it returns");
  return lock;
}

// The program's own number, or LibTorch's if the program has chosen none.
int first_threads(int of_program) {
  static const auto of_libtorch = at::get_num_threads();  // sets OpenMP's, at its first call
  if (of_program == 0 || of_program == omp_get_num_procs()) return of_libtorch;
  at::set_num_threads(of_program);
  return of_program;
}

}  // namespace

Visit::Visit(Guest& guest)
    : lock_(entered()),
      guest_(guest),
      given_(guest.place ? &*guest.place : nullptr, &guest.arrays),
      threads_(omp_get_max_threads != nullptr ? omp_get_max_threads() : 0),
      locale_(::uselocale(c_locale())) {
  std::fegetenv(&floats_);
  has_own_mode_ = !is_default(floats_);
  std::fesetenv(FE_DFL_ENV);
  if (guest_.threads == 0) guest_.threads = first_threads(threads_);
  if (threads_ != 0) omp_set_num_threads(guest_.threads);
  if (has_own_mode_) set_on_all_threads(FE_DFL_ENV);
}

Visit::~Visit() {
  if (has_own_mode_) set_on_all_threads(&floats_);
  guest_.threads = at::get_num_threads();
  if (threads_ != 0) omp_set_num_threads(threads_);
  ::uselocale(locale_);
  std::fesetenv(&floats_);
}

}  // namespace vernier
