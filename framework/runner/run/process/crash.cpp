#include "crash.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/event.h>
#include <vernier/plugin.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "core/plugin_calls.h"
#include "core/process_state.h"

namespace vernier {

namespace {

struct Fatal {
  int signal;
  const char* name;
  struct sigaction before = {};
};
Fatal fatal[] = {{SIGSEGV, "SIGSEGV (invalid memory access)"},
                 {SIGBUS, "SIGBUS (bus error)"},
                 {SIGFPE, "SIGFPE (arithmetic error)"},
                 {SIGILL, "SIGILL (illegal instruction; was it built for another processor?)"},
                 {SIGABRT, "SIGABRT (abort)"},
                 {SIGSYS, "SIGSYS (a system call that is not allowed)"},
                 {SIGTRAP, "SIGTRAP (trap)"},
                 {SIGALRM, "SIGALRM (a timer)"},
                 {SIGVTALRM, "SIGVTALRM (a timer)"},
                 {SIGPROF, "SIGPROF (a timer)"}};

std::atomic<const CallsWatched::Calls*> watched = nullptr;
std::atomic<int> log_file = -1;
std::atomic<bool> is_terminal = false;
const ExitRefused* exit_refused = nullptr;
std::atomic<const char*> uncaught = "";

// A line of text in memory of its own: in a signal handler nothing can be allocated.
class Line {
 public:
  Line& add(std::string_view text) {
    for (const char c : text) {
      const bool is_control = static_cast<unsigned char>(c) < ' ' || c == '\x7f';
      if (size_ + 1 < sizeof text_) text_[size_++] = is_control ? '?' : c;
    }
    return *this;
  }
  Line& add(std::int64_t number) {
    char digits[24];
    return add({digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, number).ptr - digits)});
  }
  // To stderr, where a progress bar may stand in the last line, and into the run's log.
  void write() {
    if (is_terminal) put(STDERR_FILENO, "\r\x1b[K");
    text_[size_] = '\n';
    put(STDERR_FILENO, {text_, size_ + 1});
    if (log_file >= 0) put(log_file, {text_, size_ + 1});
  }
  std::string_view text() const { return {text_, size_}; }

 private:
  static void put(int file, std::string_view text) { (void)!::write(file, text.data(), text.size()); }
  char text_[512];
  std::size_t size_ = 0;
};

bool is_main_thread() {
  return ::syscall(SYS_gettid) == ::getpid();
}

// Returns whether a plugin, perhaps the second of its kind, as "callback/mine#2", is of this library or of none.
bool is_of(std::string_view id, const char* library) {
  return library == nullptr || id.substr(0, id.find('#')) == library;
}

// Adds "callback/mine at StepEnd of step 3: " or "task/mine in step 3: "; nothing if no plugin is called.
void add_caller(Line& line) {
  const char* running = running_plugin();
  const auto* calls = watched.load();
  const auto* listener = listening_now();
  const auto* call = PluginCall::now();
  if (call != nullptr && is_of(call->who(), running)) {
    line.add(call->who()).add(" ").add(call->doing());
  } else if (calls == nullptr) {
    if (running == nullptr) return;
    line.add(running);
  } else if (listener != nullptr && is_of(listener->id(), running)) {
    const auto event = listening_event();
    line.add(listener->id()).add(" at ").add(name_of(event)).add(" of step ").add(step_of(event, *calls->run));
  } else {
    const auto* called = *calls->called;
    const bool is_it = called != nullptr && is_of(called->id(), running);
    line.add(is_it ? std::string_view(called->id()) : running != nullptr ? running : "trainer");
    if (*calls->step > 0) {
      line.add(" in step ").add(*calls->step);
    } else if (calls->run->step > 0) {
      line.add(" after step ").add(calls->run->step);
    }
  }
  line.add(is_main_thread() ? ": " : ", in another thread: ");
}

// Async-signal-safe, as far as a walk over the stack is. The memory that it reads may be damaged.
void write_last_line(const char* end, const char* signal = "", const char* more = "") {
  Line line;
  line.add("vernier: ");
  add_caller(line);
  line.add(end).add(signal).add(more);
  const auto* calls = watched.load();
  if (log_file >= 0 && calls != nullptr && calls->run->step < calls->run->steps) {
    line.add("; what the run has saved is intact, and --resume continues from its last checkpoint");
  }
  line.write();
}

extern "C" void report_crash(int signal, siginfo_t* info, void*) {
  static volatile std::sig_atomic_t depth = 0;
  const auto* found = fatal;
  while (found->signal != signal) ++found;
  depth = depth + 1;
  if (depth > 1) ::sigaction(signal, &found->before, nullptr);  // the handler itself crashed
  const int error = errno;
  if (depth <= 2) write_last_line("crashed with ", found->name, signal == SIGABRT ? uncaught.load() : "");
  ::sigaction(signal, &found->before, nullptr);
  errno = error;
  // A fault comes again when its instruction is tried again, so the core shows the place. Another is sent again.
  const bool comes_again = signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL;
  if (!comes_again || info->si_code <= 0) (void)::raise(signal);
}

// An exception was thrown by a destructor, a noexcept function or a thread. The line about the abort says it.
[[noreturn]] void note_uncaught() {
  if (std::current_exception() != nullptr) uncaught = (new std::string(": nobody caught " + caught().message))->c_str();
  std::abort();
}

}  // namespace

void name_crashes() {
  // A stack that has overflowed has no room for the handler.
  static std::array<char, 1 << 16> room;
  stack_t stack = {};
  stack.ss_sp = room.data();
  stack.ss_size = room.size();
  (void)::sigaltstack(&stack, nullptr);
  is_terminal = ::isatty(STDERR_FILENO) != 0;
  std::set_terminate(note_uncaught);
  (void)running_plugin();  // the first walk over the stack opens libgcc
  for (auto& each : fatal) {
    struct sigaction action = {};
    action.sa_sigaction = report_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigemptyset(&action.sa_mask);
    (void)::sigaction(each.signal, &action, &each.before);
  }
}

void name_crashes_in(const std::string& log) {
  const int before = log_file.exchange(::open(log.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (before >= 0) ::close(before);
}

CallsWatched::CallsWatched(const Plugin* const& called, const Run& run, const std::int64_t& step)
    : calls_{&called, &run, &step}, before_(watched.exchange(&calls_)) {}

CallsWatched::~CallsWatched() {
  watched = before_;
}

void report_interrupt() {
  write_last_line("interrupted by a second Ctrl-C");
}

// Called at exit, before the static objects are destroyed that existed when the last ExitRefused was made. Once all
// ExitRefused are gone, only the end of a plugin's library can call exit() again.
void ExitRefused::refuse() {
  if (exit_refused == nullptr && running_plugin() == nullptr) return;
  const auto* refused = std::exchange(exit_refused, nullptr);
  Line line, error;
  add_caller(error);
  error.add("exit() was called");
  error.add(watched == nullptr ? ", and ends the process; throw vernier::Error instead"
                               : ", and the run is not done; throw vernier::Error, or call run.control->finish()");
  line.add("vernier: ").add(error.text());
  line.write();
  try {
    if (refused != nullptr && refused->at_exit_ && is_main_thread()) refused->at_exit_(std::string(error.text()));
  } catch (...) {
    std::cerr << "vernier: summary.json: " << caught().message << '\n';
  }
  std::cout.flush();
  (void)std::fflush(nullptr);
  ::_exit(static_cast<int>(Error::Kind::training));
}

ExitRefused::ExitRefused(std::function<void(const std::string&)> at_exit)
    : at_exit_(std::move(at_exit)), before_(std::exchange(exit_refused, this)) {
  (void)std::atexit(refuse);
  (void)std::at_quick_exit(refuse);
}

ExitRefused::~ExitRefused() {
  exit_refused = before_;
}

}  // namespace vernier
