#include "process_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <clocale>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

namespace vernier {

namespace {

using std::int64_t;

const PluginCall* call_now = nullptr;

std::string& warned() {
  static auto* text = new std::string();
  return *text;
}

#ifdef __x86_64__
constexpr int64_t denormals_are_zero = 0x8040;  // FTZ and DAZ, as crtfastmath.o sets them

// The control bits of MXCSR, and the control word of the x87 above them. The flags of errors so far do not count.
int64_t floating_point_mode() {
  fenv_t now;
  std::fegetenv(&now);
  return (now.__mxcsr & ~0x3FU) | (static_cast<int64_t>(now.__control_word) << 32);
}

void set_floating_point_mode(int64_t mode) {
  fenv_t now;
  std::fegetenv(&now);
  now.__mxcsr = (now.__mxcsr & 0x3FU) | static_cast<unsigned>(mode & 0xFFFFFFFF);
  now.__control_word = static_cast<unsigned short>(mode >> 32);
  std::fesetenv(&now);
}
#else
constexpr int64_t denormals_are_zero = 0;

int64_t floating_point_mode() {
  return std::fegetround();
}

void set_floating_point_mode(int64_t mode) {
  std::fesetround(static_cast<int>(mode));
}
#endif

int64_t signal_mask() {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  int64_t bits = 0;
  std::memcpy(&bits, &now, sizeof bits);
  return bits;
}

void set_signal_mask(int64_t bits) {
  sigset_t mask;
  ::sigemptyset(&mask);
  std::memcpy(&mask, &bits, sizeof bits);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

// There is no other way to ask; a file that another thread makes meanwhile is private.
int64_t file_mask() {
  const auto mask = ::umask(077);
  ::umask(mask);
  return mask;
}

template <c10::DeviceType device>
int64_t autocast() {
  return at::autocast::is_autocast_enabled(device) ? 1 : 0;
}

template <c10::DeviceType device>
int64_t autocast_dtype() {
  return static_cast<int64_t>(at::autocast::get_autocast_dtype(device));
}

// The allocator that there was before any plugin, or that count_memory() of the toolkit has put over it at any time.
c10::Allocator* allocator_of_host = nullptr;

// Returns the address of an allocator that is another one; else 0.
int64_t other_allocator() {
  auto* now = c10::GetCPUAllocator();
  Dl_info code = {};
  const auto* functions = *reinterpret_cast<void* const*>(now);
  const bool is_of_toolkit =
      ::dladdr(functions, &code) != 0 && std::strstr(code.dli_fname, "libvernier_core") != nullptr;
  if (allocator_of_host == nullptr || is_of_toolkit) allocator_of_host = now;
  return now == allocator_of_host ? 0 : reinterpret_cast<int64_t>(now);
}

void set_allocator(int64_t address) {
  auto* allocator = address == 0 ? allocator_of_host : reinterpret_cast<c10::Allocator*>(address);
  c10::SetCPUAllocator(allocator);
  if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator, /*priority=*/0xFF);
}

struct Mode {
  const char* name;
  int64_t (*read)();
  void (*write)(int64_t value);
};

const Mode modes[] = {
    {"the floating-point mode", floating_point_mode, set_floating_point_mode},
    {"the mask of signals", signal_mask, set_signal_mask},
    {"the umask", file_mask, [](int64_t mask) { ::umask(static_cast<mode_t>(mask)); }},
    {"the number of threads", [] { return int64_t{at::get_num_threads()}; },
     [](int64_t threads) { at::set_num_threads(static_cast<int>(threads)); }},
    {"autocast, on or off,", autocast<at::kCPU>,
     [](int64_t on) { at::autocast::set_autocast_enabled(at::kCPU, on != 0); }},
    {"autocast on GPUs, on or off,", autocast<at::kCUDA>,
     [](int64_t on) { at::autocast::set_autocast_enabled(at::kCUDA, on != 0); }},
    {"autocast's dtype on the CPU", autocast_dtype<at::kCPU>,
     [](int64_t dtype) { at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(dtype)); }},
    {"autocast's dtype on GPUs", autocast_dtype<at::kCUDA>,
     [](int64_t dtype) { at::autocast::set_autocast_dtype(at::kCUDA, static_cast<at::ScalarType>(dtype)); }},
    {"autocast's cache, on or off,", [] { return int64_t{at::autocast::is_autocast_cache_enabled()}; },
     [](int64_t on) { at::autocast::set_autocast_cache_enabled(on != 0); }},
    {"the inference mode", [] { return int64_t{c10::AutogradState::get_tls_state().get_inference_mode()}; },
     [](int64_t on) { c10::AutogradState::get_tls_state().set_inference_mode(on != 0); }},
    {"the gradient mode", [] { return int64_t{c10::AutogradState::get_tls_state().get_grad_mode()}; },
     [](int64_t on) { c10::AutogradState::get_tls_state().set_grad_mode(on != 0); }},
    {"LibTorch's allocator on the CPU", other_allocator, set_allocator},
    {"LibTorch's choice of deterministic algorithms",
     [] {
       const auto& context = at::globalContext();
       return (context.deterministicAlgorithms() ? 1 : 0) +
              (context.deterministicAlgorithmsWarnOnly() ? int64_t{2} : 0);
     },
     [](int64_t choice) { at::globalContext().setDeterministicAlgorithms((choice & 1) != 0, (choice & 2) != 0); }},
    {"the handler of std::terminate", [] { return reinterpret_cast<int64_t>(std::get_terminate()); },
     [](int64_t handler) { std::set_terminate(reinterpret_cast<std::terminate_handler>(handler)); }},
    {"the default dtype", [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); },
     [](int64_t dtype) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(dtype))); }}};

bool is_same(const struct sigaction& one, const struct sigaction& other) {
  return one.sa_handler == other.sa_handler && one.sa_flags == other.sa_flags;  // the union's other member too
}

// The libraries opened so far, by address. Nothing is ever taken out, and what does not fit is left out.
struct Opened {
  const char *begin, *end, *id;
};
std::array<Opened, 256> all_opened;
std::atomic<std::size_t> opened_count = 0;

const char* plugin_at(const void* address) {
  for (std::size_t i = 0; i < opened_count; ++i) {
    if (address >= all_opened[i].begin && address < all_opened[i].end) return all_opened[i].id;
  }
  return nullptr;
}

// Called for each mapped library: sets the ends of the one that has the address `begin`, and stops there. The loader's
// own _dl_find_object needs glibc 2.35.
int find_ends(dl_phdr_info* library, std::size_t /*size*/, void* opened) {
  auto& found = *static_cast<Opened*>(opened);
  const char *first = nullptr, *last = nullptr;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const auto* begin = reinterpret_cast<const char*>(library->dlpi_addr + part.p_vaddr);
    if (first == nullptr) first = begin;  // the parts are in the order of their addresses
    last = begin + part.p_memsz;
  }
  if (first == nullptr || found.begin < first || found.begin >= last) return 0;
  found = {first, last, nullptr};
  return 1;
}

}  // namespace

ProcessState ProcessState::now() {
  ProcessState now;
  for (const auto& mode : modes) now.modes_.push_back(mode.read());
  now.handlers_ = {};
  for (int signal = 1; signal < std::ssize(now.handlers_); ++signal) {
    ::sigaction(signal, nullptr, &now.handlers_[static_cast<std::size_t>(signal)]);
  }
  now.c_locale_ = std::setlocale(LC_ALL, nullptr);
  std::error_code none;
  now.folder_ = std::filesystem::current_path(none).string();
  return now;
}

std::string ProcessState::changed_in(const ProcessState& later) const {
  for (std::size_t i = 0; i < modes_.size(); ++i) {
    if (modes_[i] == later.modes_[i]) continue;
    const bool is_fast_math = i == 0 && ((later.modes_[i] ^ modes_[i]) & denormals_are_zero) != 0;
    return modes[i].name + std::string(is_fast_math ? " (numbers near 0 became 0)" : "");
  }
  for (std::size_t signal = 1; signal < handlers_.size(); ++signal) {
    if (!is_same(handlers_[signal], later.handlers_[signal]))
      return std::string("the handler of SIG") + ::sigabbrev_np(static_cast<int>(signal));
  }
  if (c_locale_ != later.c_locale_ || cpp_locale_ != later.cpp_locale_) return "the locale";
  return folder_ != later.folder_ ? "the working directory" : "";
}

void ProcessState::restore() const {
  const auto now = ProcessState::now();
  for (std::size_t i = 0; i < modes_.size(); ++i) {
    if (modes_[i] != now.modes_[i]) modes[i].write(modes_[i]);
  }
  for (std::size_t signal = 1; signal < handlers_.size(); ++signal) {
    if (!is_same(handlers_[signal], now.handlers_[signal]))
      ::sigaction(static_cast<int>(signal), &handlers_[signal], nullptr);
  }
  if (cpp_locale_ != now.cpp_locale_) std::locale::global(cpp_locale_);
  if (c_locale_ != now.c_locale_) std::setlocale(LC_ALL, c_locale_.c_str());
  std::error_code none;
  if (folder_ != now.folder_) std::filesystem::current_path(folder_, none);
}

PluginCall::PluginCall(std::string who, std::string doing)
    : who_(std::move(who)), doing_(std::move(doing)), outer_(call_now), before_(ProcessState::now()) {
  call_now = this;
}

PluginCall::~PluginCall() {
  call_now = outer_;
  const auto changed = before_.changed_in(ProcessState::now());
  if (changed.empty()) return;
  before_.restore();
  const bool is_fast_math = changed.ends_with("became 0)");
  const auto text =
      doing_ + " it changed " + changed + " of the whole process, which was put back; " +
      (is_fast_math ? "-ffast-math links start-up code that does this (crtfastmath.o): link without it, or with "
                      "-fno-fast-math behind it"
                    : "restore it before you return");
  if (warned().empty()) warned() = who_ + ": " + text;
  log(Level::warning, who_, text);
}

const std::string& PluginCall::first_warning() {
  return warned();
}

const PluginCall* PluginCall::now() {
  return call_now;
}

void note_opened(const void* in_library, const std::string& id) {
  Opened found = {static_cast<const char*>(in_library), nullptr, nullptr};
  const auto place = opened_count.load();
  if (plugin_at(in_library) != nullptr || place == all_opened.size()) return;
  ::dl_iterate_phdr(&find_ends, &found);
  if (found.end == nullptr) return;
  found.id = ::strdup(id.c_str());  // it lives as long as the process, as the plugin does
  all_opened[place] = found;
  opened_count = place + 1;
}

const char* running_plugin() {
  static volatile std::sig_atomic_t is_walking = 0;
  if (is_walking != 0) return nullptr;
  is_walking = 1;
  void* frames[64];
  const int count = ::backtrace(frames, 64);
  is_walking = 0;
  for (int i = 0; i < count; ++i) {
    if (const char* plugin = plugin_at(frames[i]); plugin != nullptr) return plugin;
  }
  return nullptr;
}

}  // namespace vernier
